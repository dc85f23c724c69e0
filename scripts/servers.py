"""Shared parts of the scripts: starting and stopping servers on loopback, RESP over a socket,
figures from /proc.

A server is Flagstone (the default) or, for comparison and for testing a script itself, redis-server
or valkey-server: the program's name decides which arguments it gets.
"""

import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
# A script that is told to stop leaves its with-blocks, and they stop the servers.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def fail(message):
    """Ends the script: something it needs is missing or broken."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def default_binary():
    """FLAGSTONE_BIN, or the release build in CARGO_TARGET_DIR or target/."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return os.environ.get("FLAGSTONE_BIN") or str(target / "release" / "flagstone")


def command_of(binary):
    """The argv of a program given as one string, which may hold arguments; ends the script if it does not exist."""
    argv = shlex.split(binary)
    program = shutil.which(argv[0])
    if program is None:
        fail(f"no program {argv[0]}: build it with `cargo build --release`, or name one with --ours or FLAGSTONE_BIN")
    return [program, *argv[1:]]


def is_reference(binary):
    """True if the program is a Redis or Valkey server, with their arguments."""
    return Path(shlex.split(binary)[0]).name.startswith(("redis", "valkey"))


PORTS_GIVEN = set()


def free_port(first=22000, count=200):
    """A port of [first, first + count) nobody listens on, each once; FLAGSTONE_PORTS=first-last moves the range."""
    if os.environ.get("FLAGSTONE_PORTS"):
        low, _, high = os.environ["FLAGSTONE_PORTS"].partition("-")
        first, count = int(low), int(high) - int(low) + 1
    start = os.getpid() * 7 % count
    for offset in range(count):
        port = first + (start + offset) % count
        if port in PORTS_GIVEN:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                PORTS_GIVEN.add(port)
                return port
            except OSError:
                continue
    return fail(f"no free port in {first}..{first + count}")


class Server:
    """One server process on loopback and its data directory, which outlives restarts.

    mode is always, everysec or no. workers, shards and budget mean nothing to Redis. extra is appended as it is.
    With FLAGSTONE_STORE=s3://bucket/prefix, the data of each server lies in a prefix of its own below that.
    """

    def __init__(self, binary, mode="everysec", workers=1, shards=None, budget="1gb", extra=(), name=None,
                 directory=None, persist=True):
        self.binary, self.mode, self.workers, self.shards = binary, mode, workers, shards
        self.budget, self.extra, self.persist = budget, list(extra), persist
        self.reference = is_reference(binary)
        self.name = name or (Path(shlex.split(binary)[0]).name if self.reference else f"flagstone-w{workers}")
        self.owns_directory = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="flagstone-", dir=scratch_directory()))
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        store = os.environ.get("FLAGSTONE_STORE")
        # Names of directories come back, what is in a bucket stays.
        self.store = f"{store.rstrip('/')}/{self.directory.name}-{time.time_ns():x}" if store and not self.reference else None
        self.port = free_port()
        self.process = None

    def argv(self):
        argv = [*command_of(self.binary), "--port", str(self.port), "--dir", str(self.data)]
        if self.reference:
            argv += ["--save", "", "--appendonly", "yes" if self.persist else "no"]
            argv += ["--appendfsync", self.mode, "--bind", HOST]
        else:
            argv += ["--appendfsync", self.mode, "--workers", str(self.workers), "--memory-budget", str(self.budget)]
            if self.shards is not None:
                argv += ["--shards", str(self.shards)]
            if self.store is not None:
                argv += ["--store", self.store]
        return argv + self.extra

    def launch(self):
        """Starts the process, and does not wait for it."""
        self.data.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)

    def start(self, timeout=60):
        """Starts the process and waits until it answers PING; raises StartFailed with the log's end."""
        self.launch()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise StartFailed(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            try:
                with Connection(self.port, timeout=2) as connection:
                    reply = connection.command("PING")
                    # A server whose users have no rights is there, too.
                    if reply == b"PONG" or (isinstance(reply, ReplyError) and str(reply).startswith(("NOPERM", "NOAUTH"))):
                        # Another program may have taken the port meanwhile; ours is about to end then.
                        about = connection.command("INFO", "server")
                        if not isinstance(about, bytes) or b"process_id:%d\r" % self.process.pid in about:
                            return self
            except (OSError, ConnectionError):
                pass
            time.sleep(0.01)
        self.kill()
        raise StartFailed(f"{self.name} did not answer PING within {timeout} s:\n{self.log_tail()}")

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self, timeout=60):
        """SIGTERM; returns the exit code, or None if it had to be killed after the timeout (seconds)."""
        if self.process is None or self.process.poll() is not None:
            return self.process and self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def close(self):
        """Kills the process and removes a directory made here."""
        self.kill()
        if self.owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def log_tail(self, lines=15):
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join("    " + line for line in text.splitlines()[-lines:])

    def connect(self, timeout=30):
        return Connection(self.port, timeout)

    def command(self, *args):
        """One command on a connection of its own."""
        with self.connect(120) as connection:
            return connection.command(*args)

    def cpu_seconds(self):
        """CPU time of all threads, user and system, ended threads included."""
        return cpu_of(f"/proc/{self.process.pid}/stat")

    def cpu_by_worker(self):
        """CPU seconds by thread id of the threads named worker-N; of all threads where there are none (Redis)."""
        workers, everyone = {}, {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                everyone[task.name] = cpu_of(task / "stat")
                if (task / "comm").read_text().startswith("worker-"):
                    workers[task.name] = everyone[task.name]
            except (FileNotFoundError, ProcessLookupError):
                continue
        return workers or everyone

    def rss_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def peak_rss_bytes(self):
        """The most since the start, or since reset_peak_rss()."""
        return peak_rss_of(self.process.pid)

    def reset_peak_rss(self):
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def io(self):
        """The bytes that the process has read and written since its start: read_bytes and write_bytes are the storage layer's, rchar
        and syscr are bytes and calls of read(2), page cache included; sockets are read by recv(2) and not in it."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return {name: int(number) for name, number in (line.split(": ") for line in lines)}

    def info(self, section):
        """The numbers of a section of INFO, by name."""
        found = {}
        for line in self.command("INFO", section).decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.isdigit():
                found[name] = int(value)
        return found

    def disk_bytes(self, part=""):
        """Bytes allocated on disk for the data directory, or for the folders in it whose names begin with `part`."""
        total = 0
        for folder, _, files in os.walk(self.data):
            if not Path(folder).relative_to(self.data).as_posix().startswith(part):
                continue
            for file in files:
                try:
                    total += os.stat(os.path.join(folder, file)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total

    def pending_bytes(self):
        """Written rows that the engine has yet to get: a hand-over follows, even if the server looks idle."""
        return 0 if self.reference else self.info("flagstone").get("pending_bytes", 0)

    def settle(self, timeout=30, idle_share=0.05):
        """Waits until background work is done; False at the timeout (seconds)."""
        return not settle([self], timeout, idle_share)


def settle(found, timeout=30, idle_share=0.05):
    """Waits until no server has background work: less than idle_share of one CPU over a second, and no pending rows.
    Returns those that still have some at the timeout (seconds)."""
    busy = list(found)
    deadline = time.monotonic() + timeout
    while busy and time.monotonic() < deadline:
        before = [server.cpu_seconds() for server in found]
        time.sleep(1)
        busy = [server for server, cpu in zip(found, before)
                if server.cpu_seconds() - cpu >= idle_share or server.pending_bytes()]
    return busy


def run(*argv):
    """Runs a program; its seconds, the peak of its memory in MiB, and what it has printed."""
    began, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([str(word) for word in argv], stdout=output, stderr=output)
        # What wait4 says has the peak of this process in it, which the child was for a moment.
        while child.poll() is None:
            peak = max(peak, peak_rss_of(child.pid))
            time.sleep(0.01)
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    seconds = time.perf_counter() - began
    if child.returncode != 0:
        fail(f"{' '.join(map(str, argv))} ended with {child.returncode}: {text}")
    return seconds, peak / 2**20, text


def peak_rss_of(process):
    """Bytes; 0 once it has ended."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def scratch_directory():
    """Where temporary data directories go: FLAGSTONE_SCRATCH (a real disk, for `always`), else the system's choice."""
    return os.environ.get("FLAGSTONE_SCRATCH") or None


def cpu_of(stat):
    # The name in parentheses may hold blanks: fields are counted after the last one.
    fields = Path(stat).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


class StartFailed(Exception):
    """A server ended at its start or never answered."""


class ReplyError(Exception):
    """An error reply; read() returns it, command() too, nothing raises it."""


def encode(args):
    """One command as a RESP array of bulk strings."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class Connection:
    """A blocking RESP2 client. Any trouble of the socket is an OSError."""

    def __init__(self, port, timeout=30):
        self.socket = socket.create_connection((HOST, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb", buffering=1 << 16)

    def send(self, *commands):
        self.socket.sendall(b"".join(encode(command) for command in commands))

    def read(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("connection closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ReplyError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.read_bulk(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        raise ConnectionError(f"not a RESP2 reply: {line!r}")

    def read_bulk(self, length):
        data = self.reader.read(length + 2)
        if len(data) != length + 2:
            raise ConnectionError("connection closed inside a bulk string")
        return data[:-2]

    def command(self, *args):
        self.send(args)
        return self.read()

    def pipeline(self, commands):
        self.send(*commands)
        return [self.read() for _ in commands]

    def close(self):
        self.reader.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class SecuredConnection(Connection):
    """The same over TLS, with an authority that the client believes."""

    def __init__(self, port, authority, timeout=30):
        plain = socket.create_connection((HOST, port), timeout)
        context = ssl.create_default_context(cafile=str(authority))
        context.check_hostname = False
        self.socket = context.wrap_socket(plain)
        self.reader = self.socket.makefile("rb", buffering=1 << 16)


def make_certificates(directory):
    """Makes the files of an authority and of a server (ca.crt, server.crt, server.key); the options of a server that uses
    them. Ends the script if there is no openssl."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "extensions").write_text("subjectAltName=DNS:localhost")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    try:
        for argv in (
            ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "30", "-subj", "/CN=authority"],
            ["req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"],
            ["x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
             "-extfile", "extensions", "-out", "server.crt"],
        ):
            subprocess.run(["openssl", *argv], cwd=directory, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"certificates: {error}")
    files = {"cert": "server.crt", "key": "server.key", "ca-cert": "ca.crt"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(directory / file))]
    return [*options, "--tls-auth-clients", "no"]
