# docker build -t flagstone .
# docker run -p 127.0.0.1:6379:6379 -v flagstone:/data flagstone \
#   --dir /data --port 6379 --bind 0.0.0.0 --requirepass SECRET
# Without a password the server refuses clients from outside the container (protected-mode).
FROM rust:1.95-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --bin flagstone \
 && cp target/dist/flagstone /usr/local/bin/flagstone

FROM debian:trixie-slim
# Certificates are for stores in a cloud.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 6379 --home-dir /data --shell /usr/sbin/nologin flagstone \
 && install -d -o flagstone -g flagstone -m 0750 /data
COPY --from=build /usr/local/bin/flagstone /usr/local/bin/flagstone
COPY LICENSE /usr/share/doc/flagstone/LICENSE
USER flagstone
WORKDIR /data
VOLUME /data
EXPOSE 6379
# Inline commands over bash's own sockets. An answer of any kind means that the server is up, also an error (NOAUTH, LOADING, BUSY,
# MASTERDOWN, too many clients). PING waits while clients are paused, and ECHO without its argument is refused even then. It is for the port
# 6379 without TLS; for another one set --health-cmd.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD \
  ["bash", "-c", "ask() { exec 3<>/dev/tcp/127.0.0.1/6379 && printf '%s\\r\\n' $1 >&3 && read -r -t 2 reply <&3 && [[ $reply == [+-]* ]]; }; ask PING || ask ECHO"]
# The server drains, flushes and closes on SIGTERM; give it time with `docker stop --time 60`.
STOPSIGNAL SIGTERM
ENTRYPOINT ["flagstone"]
CMD ["--dir", "/data", "--port", "6379"]
