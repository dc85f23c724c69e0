"""The load generator of `bench cold`, `soak` and `restart`: processes with an epoll loop each.

redis-benchmark supports neither a zipfian choice of keys nor a mix of commands, and does not check
replies. Here keys are chosen before the clock starts; a process encodes a batch when a connection
is free, and counts its replies by their lines: no value holds a line feed, and none begins with a
character that marks a reply. Every VERIFY_EVERY-th batch is checked reply by reply: a value names
its key, and its content follows from that.
"""

import array
import math
import multiprocessing
import multiprocessing.connection
import os
import random
import select
import signal
import socket
import struct
import time

from servers import HOST, encode, fail

# Key choices a process makes ahead, unless every key is to be chosen once. They are used again and again, in turn.
CHOICES = 1_000_000
# Seconds without any reply.
PATIENCE = 60
VERIFY_EVERY = 50
KEY_HOLE, VERSION_HOLE = b"#" * 12, b"@" * 8
HEAD_BYTES = len(KEY_HOLE) + len(VERSION_HOLE)
KEY_BYTES = len(b"key:") + len(KEY_HOLE)
VERSIONS = 10 ** len(VERSION_HOLE)
VALUE_FORMAT = b"%012d%08d%b"
POOL_BYTES, MOST_FILLERS = 16 << 20, 4096


class Values:
    """Values of one size: key and version as digits, then random bytes that follow from both."""

    def __init__(self, size):
        if size < HEAD_BYTES:
            fail(f"a value has at least {HEAD_BYTES} bytes")
        self.size = size
        rest, source = size - HEAD_BYTES, random.Random(1)
        no_lines = bytes.maketrans(b"\r\n", b"..")
        self.fillers = [source.randbytes(rest).translate(no_lines)
                        for _ in range(max(64, min(MOST_FILLERS, POOL_BYTES // max(1, rest))))]
        self.template = encode(["SET", b"key:" + KEY_HOLE, b"~" * size])
        self.template = self.template.replace(KEY_HOLE, b"%012d").replace(b"~" * size, VALUE_FORMAT)

    def filler(self, key, version):
        return self.fillers[(key * 31 + version) % len(self.fillers)]

    def set(self, key, version):
        return self.template % (key, key, version, self.filler(key, version))

    def parts(self, key, version):
        """The arguments of VALUE_FORMAT for a value."""
        version %= VERSIONS
        return key, version, self.filler(key, version)

    def right(self, key, value):
        head = value[:HEAD_BYTES]
        if len(value) != self.size or not head.isdigit() or int(head[:12]) != key:
            return False
        return value[HEAD_BYTES:] == self.filler(key, int(head[12:]))


def template(*words):
    return encode(words).replace(KEY_HOLE, b"%012d").replace(VERSION_HOLE, b"%08d")


class Uniform:
    """Any of `number` keys, all `stride` apart, equally often."""

    def __init__(self, number, stride=1):
        self.number, self.stride = number, stride

    def choose(self, source, *_):
        number, stride, chance = self.number, self.stride, source.random
        return array.array("I", [int(chance() * number) * stride for _ in range(CHOICES)])


class Zipfian:
    """YCSB's scrambled zipfian (Gray et al., SIGMOD 1994): ranks by frequency, scattered over the keys by a hash."""

    THETA = 0.99

    def __init__(self, number):
        self.number = number

    def choose(self, source, *_):
        number, theta, chance = self.number, self.THETA, source.random
        total, second = zeta(number, theta), 1 + 0.5**theta
        alpha = 1 / (1 - theta)
        eta = (1 - (2 / number) ** (1 - theta)) / (1 - second / total)
        chosen = array.array("I", bytes(4 * CHOICES))
        for place in range(CHOICES):
            share = chance()
            scaled = share * total
            rank = 0 if scaled < 1 else 1 if scaled < second else int(number * (eta * share - eta + 1) ** alpha)
            chosen[place] = fnv64(rank) % number
        return chosen


class Once:
    """Every key once, in no order; a process gets its part of them."""

    def __init__(self, number):
        self.number = number
        self.step = next(step for step in range(int(number * 0.618) | 1, 4 * number + 4) if math.gcd(step, number) == 1)

    def choose(self, _source, index, processes):
        first, end = self.number * index // processes, self.number * (index + 1) // processes
        return array.array("I", [place * self.step % self.number for place in range(first, end)])


def zeta(number, theta):
    """The sum of 1 / i^theta for i up to number: the first exactly, the rest by Euler and Maclaurin."""
    exact = min(number, 10_000)
    total = sum(i**-theta for i in range(1, exact + 1))
    rest = (number ** (1 - theta) - exact ** (1 - theta)) / (1 - theta)
    return total + rest + (number**-theta - exact**-theta) / 2


def fnv64(number):
    digest = 0xCBF29CE484222325
    for byte in number.to_bytes(8, "little"):
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return digest


class Work:
    """The load: kinds of commands by weight, a choice of keys.

    kinds maps a name to (weight, function of key and version that makes the bytes). checks maps a name to a function of key,
    first line and bulk strings of a reply, which returns whether that is right; a reply without a check only has to be no
    error. With must_hit a nil is an error. units is the number of lines of a reply, not counting the contents of bulk strings:
    1, and that of its elements for an array.
    """

    def __init__(self, values, kinds, keys, pipeline, must_hit=False, checks=None, units=1):
        self.values, self.kinds, self.keys, self.pipeline, self.must_hit = values, kinds, keys, pipeline, must_hit
        self.checks = {"GET": self.got, "SET": lambda _, line, __: line == b"+OK"} if checks is None else checks
        self.units = units

    def got(self, key, line, bodies):
        return self.values.right(key, bodies[0]) if bodies else line == b"$-1" and not self.must_hit

    def prepare(self, index, processes):
        """Makes the choices of one process."""
        source = random.Random(os.getpid() * 1000 + time.monotonic_ns())
        self.chosen, self.place = self.keys.choose(source, index, processes), 0
        names = source.choices(list(self.kinds), [weight for weight, _ in self.kinds.values()], k=1 << 16)
        self.names = names if len(self.kinds) > 1 else names[: 1 << 10]
        self.makers = [self.kinds[name][1] for name in self.names]
        self.turn, self.version = 0, source.randrange(VERSIONS // 2)

    def batch(self, number):
        """The bytes of so many commands, and what they are."""
        if self.place + number > len(self.chosen):
            self.place = 0
        keys = self.chosen[self.place : self.place + number]
        self.place += number
        if self.turn + number > len(self.makers):
            self.turn = 0
        makers = self.makers[self.turn : self.turn + number]
        plan = keys, self.turn
        self.turn += number
        self.version = version = (self.version + 1) % VERSIONS
        return b"".join([make(key, version) for make, key in zip(makers, keys)]), plan

    def wrong(self, plan, lines):
        """The fault of the replies to a batch, or None."""
        keys, turn = plan
        rest = iter(lines)
        for key, name in zip(keys, self.names[turn:]):
            line = next(rest)[:-1]
            bodies, is_array = [], line.startswith(b"*")
            for _ in range(int(line[1:]) if is_array else 1):
                head = next(rest)[:-1] if is_array else line
                if not head.startswith(b"$") or head == b"$-1":
                    continue
                bodies.append(next(rest)[:-1])
                if len(bodies[-1]) != int(head[1:]):
                    return f"{name} of key {key}: {len(bodies[-1])} bytes after {head!r}"
            check = self.checks.get(name)
            if check and not check(key, line, bodies):
                return f"{name} of key {key}: {line!r} {bodies[0][:40] if bodies else b''!r}"
        return None


def gets(values, keys, pipeline):
    line = template("GET", b"key:" + KEY_HOLE)
    return Work(values, {"GET": (1, lambda key, _: line % key)}, keys, pipeline, must_hit=True)


def sets(values, keys, pipeline):
    return Work(values, {"SET": (1, values.set)}, keys, pipeline)


def halves(values, keys, pipeline):
    line = template("GET", b"key:" + KEY_HOLE)
    return Work(values, {"GET": (1, lambda key, _: line % key), "SET": (1, values.set)}, keys, pipeline, must_hit=True)


class Figures:
    """The measurements of one window, or in all: operations, latencies of batches in buckets 1.6 % wide."""

    def __init__(self):
        self.operations, self.nils, self.max_s, self.buckets = 0, 0, 0.0, {}
        self.errors, self.first_error = 0, None

    def add(self, seconds, operations):
        self.operations += operations
        if seconds > self.max_s:
            self.max_s = seconds
        micros = int(seconds * 1e6)
        shift = micros.bit_length() - 7
        bucket = micros if shift <= 0 else shift * 64 + (micros >> shift)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other):
        self.operations += other.operations
        self.nils += other.nils
        self.max_s = max(self.max_s, other.max_s)
        self.errors += other.errors
        self.first_error = self.first_error or other.first_error
        for bucket, number in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + number

    def percentile(self, share):
        """Milliseconds that this share (percent) of the batches did not exceed."""
        left = sum(self.buckets.values()) * share / 100
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                shift = max(0, bucket // 64 - 1)
                return min(self.max_s * 1000, (((bucket - shift * 64) << shift) + (1 << shift) / 2) / 1000)
        return 0.0

    def latencies(self):
        return {f"p{share}_ms": self.percentile(share) for share in (50, 99, 99.9)} | {"max_ms": self.max_s * 1000}


class Loop:
    """The connections of one process. With a rate, a batch is due at its time and its latency counts from then."""

    def __init__(self, port, work, clients, rate):
        self.work, self.rate = work, rate
        self.poll, self.states = select.epoll(), {}
        for _ in range(clients):
            connection = socket.create_connection((HOST, port), PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A timeout of Python's would cost a poll(2) for each call.
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
            # [connection, what has come of the replies, when the batch was due, its number of commands, what they are]
            self.states[connection.fileno()] = [connection, [], 0.0, 0, None]
            self.poll.register(connection.fileno(), select.EPOLLIN)

    def run(self, start, seconds, operations, window, pipe):
        """Sends until the time is over, or as many operations as told; a record for each window goes into the pipe."""
        self.figures, self.left, self.batches = Figures(), operations, 0
        self.end = math.inf if seconds is None else start + seconds
        self.next_due = time.monotonic()
        clock, window_end = time.monotonic, start + (window or math.inf)
        idle, busy, heard = list(self.states.values()), 0, start
        while True:
            now = clock()
            while now >= window_end:
                pipe.send(self.figures)
                self.figures, window_end = Figures(), window_end + window
                if pipe.poll():
                    return
            over = now >= self.end or self.left <= 0
            while idle and not over and (self.rate is None or now >= self.next_due):
                self.send(idle.pop(), now)
                busy += 1
                over = self.left <= 0
            if over and not busy:
                return
            wait = window_end - now if window else PATIENCE
            if self.rate is not None and idle and not over:
                wait = min(wait, max(0, self.next_due - now))
            events = self.poll.poll(min(PATIENCE, wait))
            if events or not busy:
                heard = clock()
            elif clock() - heard >= PATIENCE:
                raise ConnectionError(f"no reply for {PATIENCE} seconds")
            for descriptor, _ in events:
                state = self.states[descriptor]
                if self.receive(state, clock):
                    idle.append(state)
                    busy -= 1

    def send(self, state, now):
        number = min(self.work.pipeline, self.left)
        self.left -= number
        data, state[4] = self.work.batch(number)
        state[2], state[3] = now, number
        if self.rate is not None:
            state[2] = self.next_due
            self.next_due += number / self.rate
        state[0].sendall(data)

    def receive(self, state, clock):
        """Takes what has come; True if the batch is answered."""
        data = state[0].recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection")
        state[1].append(data)
        if data[-1] != 10:
            return False
        lines = b"".join(state[1]).split(b"\n")
        lines.pop()
        marks = b"".join([line[:1] for line in lines])
        nils = lines.count(b"$-1\r")
        errors, units = marks.count(b"-"), self.work.units
        answered = len(lines) - marks.count(b"$") + nils + errors * (units - 1)
        if answered < state[3] * units:
            return False
        figures = self.figures
        figures.add(clock() - state[2], state[3])
        figures.nils += nils
        if errors:
            figures.errors += errors
            figures.first_error = figures.first_error or lines[marks.index(b"-")].decode(errors="replace")
        self.batches += 1
        surplus = answered - state[3] * units
        if self.work.must_hit and nils or surplus or (not errors and self.batches % VERIFY_EVERY == 1):
            wrong = self.work.wrong(state[4], lines)
            if wrong or surplus:
                raise ConnectionError(f"wrong replies: {wrong or f'{surplus} too many to {state[3]} commands'}")
        state[1].clear()
        return True


def process(pipe, port, work, clients, rate, share):
    """The life of one process: prepares, waits to be told to go, sends; the last word is its CPU time, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        index, processes = share
        work.prepare(index, processes)
        pipe.send("ready")
        go = pipe.recv()
        loop, own = Loop(port, work, clients, rate), time.process_time()
        loop.run(*go, pipe)
        pipe.send((loop.figures, time.process_time() - own))
    # Not what was expected in a reply: a number that is none, a line that is missing.
    except (OSError, EOFError, ValueError, IndexError) as error:
        try:
            pipe.send(f"{type(error).__name__}: {error}")
        except OSError:
            pass


class Load:
    """Processes ready to send; run() is called once. They are there from the start, so that preparing costs no time later."""

    def __init__(self, server, work, clients, processes=1, rate=None):
        self.server, self.processes = server, []
        context = multiprocessing.get_context("fork")
        for index in range(processes):
            pipe, other = context.Pipe()
            number = max(1, clients * (index + 1) // processes - clients * index // processes)
            arguments = other, server.port, work, number, rate and rate / processes, (index, processes)
            worker = context.Process(target=process, args=arguments, daemon=True)
            self.processes.append((worker, pipe))
            worker.start()
            other.close()

    def __enter__(self):
        for _, pipe in self.processes:
            self.receive(pipe)
        return self

    def __exit__(self, *_):
        for worker, pipe in self.processes:
            pipe.close()
            worker.kill()
            worker.join()

    def receive(self, pipe):
        try:
            message = pipe.recv()
        except EOFError:
            message = "it ended"
        if isinstance(message, str) and message != "ready":
            fail(f"load on {self.server.name}: {message}\n{self.server.log_tail()}")
        return message

    def run(self, seconds=None, operations=None, window=None, on_window=None):
        """Returns (figures, seconds, load), load being the greatest share of a CPU that a process took.

        on_window gets the number of each whole window and its figures; the load ends when it returns True. Without
        operations, seconds end the load."""
        start, number = time.monotonic(), len(self.processes)
        for index, (_, pipe) in enumerate(self.processes):
            share = 1 << 62 if operations is None else operations * (index + 1) // number - operations * index // number
            pipe.send((start, seconds, share, window))
        total, windows, told, own = Figures(), {}, 0, []
        # How many windows each process that still sends has told of.
        counts = {pipe: 0 for _, pipe in self.processes}
        while counts:
            for pipe in multiprocessing.connection.wait(list(counts)):
                message = self.receive(pipe)
                if isinstance(message, tuple):
                    total.merge(message[0])
                    own.append(message[1])
                    del counts[pipe]
                    continue
                total.merge(message)
                windows.setdefault(counts[pipe], Figures()).merge(message)
                counts[pipe] += 1
            while told in windows and all(count > told for count in counts.values()):
                if on_window and on_window(told, windows.pop(told)):
                    self.stop(counts)
                told += 1
        seconds = time.monotonic() - start
        return total, seconds, max(own) / seconds

    @staticmethod
    def stop(pipes):
        for pipe in pipes:
            try:
                pipe.send("stop")
            except OSError:
                pass
