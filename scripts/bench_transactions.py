"""Load for `bench`: transactions and scripts, which redis-benchmark cannot send as one.

All bytes are made before the clock starts. Every reply is compared byte by byte with the expected
one, which costs next to nothing, because all replies of a kind are the same.
"""

import random
import select
import socket
import time

from servers import HOST, ReplyError, encode, fail

SETS = 10
SCRIPT = "redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], ARGV[1])"
TWO_KEYS = "redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[2], ARGV[1])"
# Keys in the bytes made ahead: they are sent again and again, in turn.
MOST_KEYS = 200_000
# Seconds without any reply.
PATIENCE = 60


class Kind:
    """How one operation looks; weight: how many operations of other cells it stands for; script: its source, if it is one."""

    def __init__(self, keys, weight, make, reply, source=None):
        self.keys, self.weight, self.make, self.reply, self.source = keys, weight, make, reply, source


def transaction(keys, value):
    return b"".join([encode(["MULTI"]), *(encode(["SET", key, value]) for key in keys), encode(["EXEC"])])


def one_shard(space, value, _):
    tag = random.randrange(max(1, space // SETS))
    return transaction([f"{{{tag:012}}}:{digit}" for digit in range(SETS)], value)


def all_shards(space, value, _):
    return transaction([any_key(space) for _ in range(SETS)], value)


def any_key(space):
    return f"key:{random.randrange(space):012}"


def script(space, value, digest):
    return encode(["EVALSHA", digest, 1, any_key(space), value])


def script_of_two(space, value, digest):
    return encode(["EVALSHA", digest, 2, any_key(space), any_key(space), value])


def two_puts(space, value, _):
    return encode(["MSET", any_key(space), value, any_key(space), value])


EXECUTED = b"+OK\r\n" + b"+QUEUED\r\n" * SETS + b"*%d\r\n" % SETS + b"+OK\r\n" * SETS
KINDS = {
    "MULTI10": Kind(SETS, 5, one_shard, EXECUTED),
    "MULTI10X": Kind(SETS, 5, all_shards, EXECUTED),
    "MSET2": Kind(2, 1, two_puts, b"+OK\r\n"),
    "EVALGS": Kind(1, 1, script, b"+OK\r\n", SCRIPT),
    "EVAL2": Kind(2, 1, script_of_two, b"+OK\r\n", TWO_KEYS),
}


class Batches:
    """The commands that one connection sends at once, many times over; needs a server's digest of the script only when it is made."""

    def __init__(self, name, pipeline, size, space):
        self.name, self.kind, self.pipeline = name, KINDS[name], pipeline
        self.value, self.space = b"v" * size, space
        self.expected = self.kind.reply * pipeline
        self.parts = None

    def prepare(self, server):
        digest = load_script(server, self.kind.source) if self.kind.source else None
        if self.parts is None:
            number = max(1, min(self.space, MOST_KEYS) // self.kind.keys // self.pipeline)
            self.parts = [b"".join(self.kind.make(self.space, self.value, digest) for _ in range(self.pipeline))
                          for _ in range(number)]


def load_script(server, source):
    digest = server.command("SCRIPT", "LOAD", source)
    if isinstance(digest, ReplyError):
        fail(f"{server.name} answers {digest} to SCRIPT LOAD")
    return digest


def generate(server, batches, clients, operations):
    """Sends that many operations (rounded to whole pipelines) over the clients; throughput and latencies."""
    batches.prepare(server)
    load = Load(server, batches, clients, max(clients, operations // batches.pipeline))
    try:
        return load.run()
    finally:
        load.close()


class Load:
    """Connections that send a batch each, and the next one when it is answered; one epoll."""

    def __init__(self, server, batches, clients, number):
        self.server, self.batches, self.number = server, batches, number
        self.poll = select.epoll()
        self.connections = {}
        for _ in range(clients):
            connection = socket.create_connection((HOST, server.port), PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # [connection, bytes received of the batch, when it was sent]
            self.connections[connection.fileno()] = [connection, 0, 0.0]
            self.poll.register(connection.fileno(), select.EPOLLIN)

    def run(self):
        own, began = time.process_time(), time.perf_counter()
        latencies = self.send_all()
        seconds, own = time.perf_counter() - began, time.process_time() - own
        latencies.sort()
        result = {f"p{share}_ms": latencies[min(len(latencies) - 1, len(latencies) * share // 100)] * 1000
                  for share in (50, 95, 99)}
        return result | {"rps": self.number * self.batches.pipeline / seconds, "load": own / seconds,
                         "avg_ms": sum(latencies) / len(latencies) * 1000, "min_ms": latencies[0] * 1000,
                         "max_ms": latencies[-1] * 1000}

    def send_all(self):
        """Seconds from sending a batch to its last reply, of every batch."""
        parts, expected, clock = self.batches.parts, self.batches.expected, time.perf_counter
        # Not always from the same one: the next round is to find other keys.
        place = random.randrange(len(parts))
        latencies, open_batches, sent = [], 0, 0
        for state in self.connections.values():
            state[2] = clock()
            state[0].sendall(parts[(place + sent) % len(parts)])
            sent, open_batches = sent + 1, open_batches + 1
        while open_batches:
            events = self.poll.poll(PATIENCE)
            if not events:
                fail(f"{self.server.name} does not answer any more to {self.batches.name}")
            for descriptor, _ in events:
                state = self.connections[descriptor]
                data = state[0].recv(65536)
                start, state[1] = state[1], state[1] + len(data)
                if not data or data != expected[start:state[1]]:
                    fail(f"{self.server.name} answers {data[:200]!r} to {self.batches.name}")
                if state[1] < len(expected):
                    continue
                now = clock()
                latencies.append(now - state[2])
                if sent < self.number:
                    state[1], state[2] = 0, now
                    state[0].sendall(parts[(place + sent) % len(parts)])
                    sent += 1
                else:
                    open_batches -= 1
        return latencies

    def close(self):
        for state in self.connections.values():
            state[0].close()
        self.poll.close()
