"""The attackers of `neighbours`: the preparation of each, and its load on a server until it is told
to stop.

An attacker is a function of a Target, decorated with @attack. It runs in a process of its own,
opens as many connections as it likes, and continues until target.stopped(). Its `prepare` function
puts the keys that it needs into the data set.
"""

import itertools
import selectors
import socket
import threading
from dataclasses import dataclass
from typing import Callable

from servers import HOST, Connection, encode

PASSWORD = "neighbours"
CHUNK = 1 << 16
ATTACKS = {}


@dataclass
class Attack:
    name: str
    about: str
    run: Callable
    prepare: Callable
    # The server has a password, which the attacker does not know.
    locked_out: bool


class Target:
    """The server as an attacker sees it. `size` is the bytes of what is large, `clients` how many connections it opens."""

    def __init__(self, port, seconds, size, clients, password=None):
        self.port, self.seconds, self.size, self.clients, self.password = port, seconds, size, clients, password
        self.stop = threading.Event()
        threading.Timer(seconds, self.stop.set).start()

    def stopped(self):
        return self.stop.is_set()

    def socket(self, authenticate=True):
        plain = socket.create_connection((HOST, self.port), 5)
        if authenticate and self.password:
            plain.sendall(encode(["AUTH", self.password]))
            plain.recv(100)
        return plain

    def connect(self):
        connection = Connection(self.port, 5)
        if self.password:
            connection.command("AUTH", self.password)
        return connection


def attack(name, about, prepare=lambda connection, size: None, locked_out=False):
    def register(run):
        ATTACKS[name] = Attack(name, about, run, prepare, locked_out)
        return run
    return register


def flood(target, first, then, authenticate=True, clients=None):
    """Clients that send `first` once (of a number that each has its own of) and `then` again and again, and never read. Who is
    closed comes back."""
    selector = selectors.DefaultSelector()
    numbers = itertools.count()

    def join():
        try:
            plain = target.socket(authenticate)
        except OSError:
            return
        plain.setblocking(False)
        begin = first(next(numbers)) if callable(first) else first
        selector.register(plain, selectors.EVENT_WRITE if begin or then else selectors.EVENT_READ, bytearray(begin))

    for _ in range(clients or target.clients):
        join()
    while not target.stopped():
        for key, _ in selector.select(0.2):
            left = key.data
            if not left and not then:
                selector.modify(key.fileobj, selectors.EVENT_READ, left)
                # It only waits to see whether it is closed.
                target.stop.wait(0.01)
                continue
            if not left:
                left += then
            try:
                del left[:key.fileobj.send(left[:CHUNK])]
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                join()
        if not selector.get_map():
            target.stop.wait(0.05)
            join()


def strings(connection, size):
    """Enough keys that some are on every worker."""
    for n in range(16):
        connection.command("SET", f"large:{n}", b"x" * size)


def lists(connection, size):
    for n in range(16):
        connection.command("DEL", f"list:{n}")
        for _ in range(8):
            connection.command("RPUSH", f"list:{n}", *[b"y" * 64] * (size // 8 // 64))


@attack("gets", "128 GETs of large values in one packet, never read", strings)
def gets(target):
    # Each of one key: some are on another worker than the connection.
    flood(target, lambda client: encode(["GET", f"large:{client % 16}"]) * 128, b"", clients=4)


@attack("ranges", "pipelined LRANGEs of large lists, never read", lists)
def ranges(target):
    flood(target, lambda client: encode(["LRANGE", f"list:{client % 16}", 0, -1]) * 128, b"", clients=10)


@attack("mget", "one MGET of 128 large values, never read", strings)
def mget(target):
    flood(target, encode(["MGET", *[f"large:{n % 16}" for n in range(128)]]), b"", clients=4)


@attack("exec", "a transaction of 128 GETs of large values, never read", strings)
def exec_(target):
    queued = b"".join(encode(["GET", f"large:{n % 16}"]) for n in range(128))
    flood(target, encode(["MULTI"]) + queued + encode(["EXEC"]), b"", clients=4)


@attack("waits", "ten BLPOPs on 100,000 keys each, that end when all have begun, again and again")
def waits(target):
    commands = [encode(["BLPOP", *[f"wait:{client}:{n}" for n in range(100_000)], 0]) for client in range(10)]
    with target.connect() as watcher:
        while not target.stopped():
            clients = [target.socket() for _ in commands]
            senders = [threading.Thread(target=client.sendall, args=(command,)) for client, command in zip(clients, commands)]
            for sender in senders:
                sender.start()
            while b"blocked_clients:10\r" not in watcher.command("INFO", "clients") and not target.stopped():
                target.stop.wait(0.05)
            for sender in senders:
                sender.join()
            for client in clients:
                client.close()


@attack("garbage", "clients without the password send garbage and do not read", locked_out=True)
def garbage(target):
    flood(target, b"", b"x\r\n" * 20_000, authenticate=False)


@attack("silent", "clients without the password take all the places they get", locked_out=True)
def silent(target):
    flood(target, b"", b"", authenticate=False)


@attack("guesses", "pipelined AUTHs with wrong passwords", locked_out=True)
def guesses(target):
    flood(target, b"", b"".join(encode(["AUTH", f"guess{n}"]) for n in range(1000)), authenticate=False)


@attack("pipelines", "clients send as many small commands as they can, and do not read")
def pipelines(target):
    flood(target, b"", b"".join(encode(["SET", f"small:{n}", n]) for n in range(1000)))


@attack("queues", "transactions that are queued and never run")
def queues(target):
    flood(target, encode(["MULTI"]), encode(["SET", "queued", b"q" * 1000]) * 100, clients=10)


@attack("halves", "values that are begun and never end")
def halves(target):
    flood(target, b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$500000000\r\n", b"h" * CHUNK, clients=10)


def slow_everything(connection, _):
    connection.command("CONFIG", "SET", "slowlog-log-slower-than", "0")


@attack("names", "clients with names of megabytes fill the slow log", slow_everything)
def names(target):
    size = min(target.size, 10 << 20)
    with target.connect() as connection:
        n = 0
        while not target.stopped():
            connection.command("CLIENT", "SETNAME", b"n" * size + str(n).encode())
            n += 1


@attack("monitors", "clients that watch by MONITOR and do not read, while much is sent")
def monitors(target):
    deaf = threading.Thread(target=flood, args=(target, encode(["MONITOR"]), b""))
    deaf.start()
    text = b"m" * 4000
    while not target.stopped():
        try:
            with target.connect() as connection:
                while not target.stopped():
                    connection.pipeline([("ECHO", text)] * 50)
        except OSError:
            continue
    deaf.join()


@attack("subscribers", "subscribers that do not read, while much is published")
def subscribers(target):
    deaf = threading.Thread(target=flood, args=(target, encode(["SUBSCRIBE", "news"]), b""))
    deaf.start()
    text = b"s" * 4000
    while not target.stopped():
        try:
            with target.connect() as connection:
                while not target.stopped():
                    connection.pipeline([("PUBLISH", "news", text)] * 50)
        except OSError:
            continue
    deaf.join()
