"""`bench publish`: the cost of PUBLISH to one channel with many listeners."""

import selectors
import socket
import statistics
import time

from bench_common import machine, raise_open_files, rotated, targets, write_json
from servers import HOST, encode, fail


def publish(options):
    """Messages delivered to N listeners of one channel, for Redis and for ours."""
    needed = raise_open_files(options.number)
    found = targets(options, "everysec")
    report = {"machine": machine(options), "listeners": options.number, "servers": {}}
    print(f"{'server':8} {'listeners':>9} {'size':>6} {'k msgs/s':>9} {'ratio':>6} {'µs/msg':>7} {'worker':>7} {'load':>5}")
    try:
        listening = {}
        for server in found:
            server.extra += ["--maxclients", str(needed)]
            server.start()
            listening[server.name] = Listeners(server, options)
        rounds = {server.name: [] for server in found}
        for turn in range(options.rounds):
            for server in rotated(found, turn):
                rounds[server.name].append(listening[server.name].measure())
        for server in found:
            report["servers"][server.name] = publish_row(server, found[0], rounds, options)
    finally:
        for server in found:
            server.close()
    write_json(options, report)


def publish_row(server, base, rounds, options):
    """Prints and returns the medians; ratio is throughput over that of the first server."""
    row = {key: statistics.median(entry[key] for entry in rounds[server.name]) for key in rounds[server.name][0]}
    base = statistics.median(entry["per_s"] for entry in rounds[base.name])
    print(f"{server.name:8} {options.number:9} {options.size:6} {row['per_s'] / 1000:9.1f} {row['per_s'] / base:6.2f}"
          f" {row['cpu_us']:7.3f} {row['worker_us']:7.3f} {row['load']:5.2f}", flush=True)
    return row | {"ratio": row["per_s"] / base, "rounds": rounds[server.name]}


class Listeners:
    """Connections that listen to one channel, and one that publishes; all of them read here, by one selector."""

    CHANNEL, CHUNK = "bench", 1 << 18

    def __init__(self, server, options):
        self.server, self.options = server, options
        payload = b"x" * options.size
        self.batch = encode(["PUBLISH", self.CHANNEL, payload]) * options.pipeline
        message = encode(["message", self.CHANNEL, payload])
        self.reply = b":%d\r\n" % options.number
        self.want = {"message": len(message), "reply": len(self.reply)}
        self.selector = selectors.EpollSelector()
        self.sockets = [self.connect() for _ in range(options.number)]
        self.publisher = self.connect(listens=False)
        self.buffer = bytearray(self.CHUNK)

    def connect(self, listens=True):
        connection = socket.create_connection((HOST, self.server.port), 30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listens:
            connection.sendall(encode(["SUBSCRIBE", self.CHANNEL]))
            confirmation = b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(self.CHANNEL), self.CHANNEL.encode())
            if connection.recv(len(confirmation), socket.MSG_WAITALL) != confirmation:
                fail(f"{self.server.name} does not confirm a subscription")
        connection.setblocking(False)
        # [bytes that are still to come]: one look-up per event.
        self.selector.register(connection, selectors.EVENT_READ, [0])
        return connection

    def measure(self):
        """Publishes --messages in batches; waits until every listener has every message."""
        batches = max(1, self.options.messages // self.options.pipeline)
        messages = batches * self.options.pipeline
        states = [self.selector.get_key(connection).data for connection in self.sockets]
        for state in states:
            state[0] = messages * self.want["message"]
        replies = self.selector.get_key(self.publisher).data
        replies[0] = messages * self.want["reply"]
        allowed = self.options.ahead * self.want["message"] * len(states)
        open_bytes = sum(state[0] for state in states) + replies[0]
        sent = 0
        cpu, by_worker, own = self.server.cpu_seconds(), self.server.cpu_by_worker(), time.process_time()
        began = time.monotonic()
        while open_bytes:
            to_come = sent * self.options.pipeline * self.want["message"] * len(states)
            received = messages * self.want["message"] * len(states) - open_bytes + replies[0]
            if sent < batches and to_come - received <= allowed:
                self.send()
                sent += 1
            open_bytes -= self.receive()
        seconds = time.monotonic() - began
        own = time.process_time() - own
        cpu, after = self.server.cpu_seconds() - cpu, self.server.cpu_by_worker()
        busiest = max(time_s - by_worker.get(thread, 0) for thread, time_s in after.items())
        delivered = messages * len(states)
        return {"per_s": delivered / seconds, "cpu_us": cpu / delivered * 1e6, "worker_us": busiest / delivered * 1e6,
                "load": own / seconds}

    def send(self):
        self.publisher.setblocking(True)
        self.publisher.sendall(self.batch)
        self.publisher.setblocking(False)

    def receive(self):
        """Reads whatever is there, waiting for something; returns the bytes."""
        events = self.selector.select(30)
        if not events:
            fail(f"{self.server.name} delivers nothing any more")
        total = 0
        for key, _ in events:
            n = key.fileobj.recv_into(self.buffer)
            if n == 0 or n > key.data[0]:
                fail(f"{self.server.name} closed a connection, or sent more than was published")
            key.data[0] -= n
            if key.fileobj is self.publisher and n % len(self.reply) == 0 and self.buffer[:n] != self.reply * (n // len(self.reply)):
                fail(f"{self.server.name} answers {bytes(self.buffer[:80])!r} to PUBLISH")
            total += n
        return total
