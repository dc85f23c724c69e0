"""The attackers of `neighbours`: the preparation of each, and its load on a server until it is told
to stop.

An attacker is a function of a Target, decorated with @attack. It runs in a process of its own,
opens as many connections as it likes, and continues until target.stopped(). Its `prepare` function
puts the keys that it needs into the data set.
"""

import base64
import itertools
import resource
import selectors
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Callable

from servers import HOST, Connection, ReplyError, encode

PASSWORD = "neighbours"
CHUNK = 1 << 16
FIELDS = 200_000
ATTACKS = {}


@dataclass
class Attack:
    name: str
    about: str
    run: Callable
    prepare: Callable
    # The server has a password, which the attacker does not know.
    locked_out: bool
    # It is about what only Flagstone has.
    only_ours: bool
    # Seconds for which small clients wait at most once it has ended, and what they ask is answered again then; 0: that is not judged.
    longest: float
    # The memory budget, if it needs one of its own; the server then takes no more than some of these.
    budget: str
    # Further options of the server.
    extra: tuple


class Target:
    """The server as an attacker sees it. `size` is the bytes of what is large, `clients` how many connections it opens."""

    def __init__(self, port, seconds, size, clients, password=None, tls_port=None, http_port=None):
        self.port, self.seconds, self.size, self.clients, self.password = port, seconds, size, clients, password
        self.tls_port, self.http_port = tls_port, http_port
        self.stop = threading.Event()
        threading.Timer(seconds, self.stop.set).start()

    def stopped(self):
        return self.stop.is_set()

    def socket(self, authenticate=True, port=None):
        plain = socket.create_connection((HOST, port or self.port), 5)
        if authenticate and self.password:
            plain.sendall(encode(["AUTH", self.password]))
            plain.recv(100)
        return plain

    def connect(self):
        connection = Connection(self.port, 5)
        if self.password:
            connection.command("AUTH", self.password)
        return connection


def attack(name, about, prepare=lambda connection, size: None, locked_out=False, only_ours=False, longest=0, budget=None, extra=()):
    def register(run):
        ATTACKS[name] = Attack(name, about, run, prepare, locked_out, only_ours, longest, budget, extra)
        return run
    return register


def flood(target, first, then, authenticate=True, clients=None, port=None):
    """Clients that send `first` once (of a number that each has its own of) and `then` again and again, and never read. Who is
    closed comes back."""
    selector = selectors.DefaultSelector()
    numbers = itertools.count()

    def join():
        try:
            plain = target.socket(authenticate, port)
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


def hash_of_many(connection, _):
    for first in range(0, FIELDS, 1000):
        words = [word for number in range(first, first + 1000) for word in (b"f%d" % number, b"v" * 50)]
        connection.command("HSET", "many", *words)


@attack("copies", f"COPY of a hash of {FIELDS} fields, again and again", hash_of_many)
def copies(target):
    with Connection(target.port, 60) as connection:
        for number in itertools.count():
            if target.stopped():
                return
            connection.command("COPY", "many", f"copy:{number % 4}", "REPLACE")


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


def client_hello():
    """The first message of a TLS handshake."""
    sent = ssl.MemoryBIO()
    session = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake without an answer")


@attack("handshakes", "TLS handshakes that begin and never end", locked_out=True, only_ours=True)
def handshakes(target):
    flood(target, client_hello(), b"", authenticate=False, clients=10 * target.clients, port=target.tls_port)


@attack("hellos", "TLS handshakes, as many as possible, each left after the server's answer", locked_out=True, only_ours=True)
def hellos(target):
    hello = client_hello()

    def run():
        while not target.stopped():
            try:
                with target.socket(False, target.tls_port) as plain:
                    plain.sendall(hello)
                    plain.recv(1 << 16)
            except OSError:
                continue

    runners = [threading.Thread(target=run) for _ in range(8)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()


def add_user(connection, _):
    patterns = [f"~pattern:*:{n}:*" for n in range(9_990)]
    connection.command("ACL", "SETUSER", "ruled", "on", ">" + PASSWORD, "+@all", *patterns)


@attack("rules", "a user with 10,000 patterns of keys, whose commands are checked against all, and which is set again", add_user)
def rules(target):
    login = encode(["AUTH", "ruled", PASSWORD])
    gets = encode(["GET", "pattern:x:10000:y"]) * 100
    again = encode(["ACL", "SETUSER", "ruled", *[f"~pattern:*:{n}:*" for n in range(9_990)]])
    flood(target, login, gets + again, clients=10)


@attack("logs", "logs and histograms of commands, again and again, never read", slow_everything)
def logs(target):
    asked = [["SLOWLOG", "GET", "-1"], ["LATENCY", "HISTOGRAM"], ["LATENCY", "DOCTOR"], ["ACL", "LOG"], ["INFO", "everything"]]
    flood(target, b"", b"".join(encode(words) for words in asked) * 20, clients=20)


@attack("replicas", "replicas that do not read, beside some that ask for the data set and leave, again and again", strings)
def replicas(target):
    ask = encode(["REPLCONF", "capa", "eof"]) + encode(["PSYNC", "?", "-1"])

    def leave_and_return():
        while not target.stopped():
            try:
                with target.socket() as plain:
                    plain.sendall(ask)
                    target.stop.wait(0.05)
            except OSError:
                target.stop.wait(0.05)

    runners = [threading.Thread(target=leave_and_return) for _ in range(4)]
    for runner in runners:
        runner.start()
    flood(target, ask, b"", clients=10)
    for runner in runners:
        runner.join()


@attack("http", "figures and values by HTTP, again and again, never read", strings, only_ours=True)
def http(target):
    login = base64.b64encode(f"default:{target.password or ''}".encode()).decode()
    asked = "".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n\r\n"
                    for path in ("/metrics", "/GET/large:1", "/GET/large:2", "/INFO/everything"))
    flood(target, b"", asked.encode() * 20, authenticate=False, port=target.http_port)


@attack("guesses http", "wrong passwords by HTTP, as many as possible", locked_out=True, only_ours=True)
def guesses_http(target):
    login = base64.b64encode(b"default:wrong").decode()
    asked = f"GET /GET/k HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n\r\n"
    flood(target, b"", asked.encode() * 100, authenticate=False, port=target.http_port)


def large_elements(connection, size):
    """A hash, a list and a set that are several times the budget of 64 MiB, with elements of a quarter of what is large."""
    element = b"e" * (size // 4)
    for n in range(48):
        connection.command("HSET", "elements:hash", n, element)
        connection.command("RPUSH", "elements:list", element)
        connection.command("SADD", "elements:set", b"%d" % n + element)


@attack("elements", "looks at large elements on the disk, and their removal, again and again", large_elements, only_ours=True,
        longest=5, budget="64mb")
def elements(target):
    element = b"n" * (target.size // 4)
    looks = [
        lambda n: [("HSCAN", "elements:hash", 0, "COUNT", 4), ("HRANDFIELD", "elements:hash", 2, "WITHVALUES")],
        lambda n: [("LINDEX", "elements:list", n % 48), ("LRANGE", "elements:list", n % 48, n % 48 + 1)],
        lambda n: [("SSCAN", "elements:set", 0, "COUNT", 4), ("SRANDMEMBER", "elements:set", 2), ("HGET", "elements:hash", n % 48)],
        # One that expires and one that is replaced, and a copy of some that is deleted.
        lambda n: [("HSETEX", "elements:hash", "PX", 100, "FIELDS", 1, f"short{n % 8}", element), ("HSET", "elements:hash", n % 48, element),
                   ("RPUSH", f"elements:{n % 4}", element, element), ("DEL", f"elements:{(n + 1) % 4}")],
    ]

    def run(look):
        for n in itertools.count():
            if target.stopped():
                return
            try:
                with target.connect() as connection:
                    connection.pipeline(look(n))
            except OSError:
                target.stop.wait(0.05)

    runners = [threading.Thread(target=run, args=(look,)) for look in looks]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()


SEGMENT = 1 << 20


def much_to_evict(connection, size):
    """Keys with names so long that the deletion of one takes more of the journal than is left of it."""
    for n in range(4 * size // (SEGMENT // 20)):
        connection.command("SET", b"n" * (SEGMENT // 20) + b"%d" % n, "x", "EX", "86400")
    connection.command("CONFIG", "SET", "maxmemory-policy", "volatile-random")


def number_of(connection, section, field):
    """A number in a section of INFO."""
    lines = connection.command("INFO", section).decode().splitlines()
    return next(int(line.removeprefix(f"{field}:")) for line in lines if line.startswith(f"{field}:"))


def fill_journal(target, connection):
    """Writes until nothing of the size of such a name can be written."""
    for size in (SEGMENT // 4, SEGMENT // 64):
        for n in itertools.count():
            if isinstance(connection.command("SET", f"filler:{size}:{n}", b"f" * size), ReplyError) or target.stopped():
                break


@attack("evictor", "keys are to be evicted, and the journal refuses that, as on a full disk", much_to_evict, only_ours=True, longest=5,
        extra=("--journal-segment-size", str(SEGMENT)))
def evictor(target):
    with target.connect() as connection:
        process = number_of(connection, "server", "process_id")
        before = resource.prlimit(process, resource.RLIMIT_FSIZE)
        try:
            # No segment can be prepared any more, and no file with many rows be written.
            resource.prlimit(process, resource.RLIMIT_FSIZE, (SEGMENT - 1, before[1]))
            fill_journal(target, connection)
            connection.command("CONFIG", "SET", "maxmemory", number_of(connection, "memory", "used_memory") - target.size // 8)
            while not target.stopped():
                connection.command("SET", "refused", b"r" * (SEGMENT // 4))
                target.stop.wait(0.01)
        finally:
            resource.prlimit(process, resource.RLIMIT_FSIZE, before)
            connection.command("CONFIG", "SET", "maxmemory", "0")
