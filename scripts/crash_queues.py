"""The rounds `streams` and `lists` of crash: kill -9 cuts off the producers and blocked consumers
of queues.

The logs hold every reply and every command sent. The outcome of a command whose reply was cut off
is determined after the restart, and counts from then on.
"""

import random
import threading
import time

import servers
from servers import ReplyError

STREAMS = ["{a}stream", "{b}stream", "{c}stream"]
# Its consumers delete what they have acknowledged; the others keep everything.
DELETING = STREAMS[2]
GROUP = "group"
LISTS = ["{a}list", "{b}list", "{c}list"]
PRODUCERS = 2
PAGE = 1000
WAIT_MS = 200
# Longest pause of a producer, in seconds: consumers are to find nothing now and then, and wait.
PAUSE = 0.01


class Client(threading.Thread):
    """One connection that works until the server is gone; an error reply ends it and is a problem."""

    def __init__(self, number, port, seed, log):
        super().__init__(daemon=True)
        self.number, self.port, self.log = number, port, log
        self.random = random.Random(seed)
        self.error = None
        self.running = True

    def run(self):
        try:
            with servers.Connection(self.port, timeout=60) as connection:
                while self.running and self.error is None:
                    self.step(connection)
        except OSError:
            pass  # the kill

    def ask(self, connection, commands):
        """The replies to a pipeline; after an error, the connection does nothing more."""
        connection.send(*commands)
        for command in commands:
            reply = connection.read()
            if isinstance(reply, ReplyError):
                self.error = self.error or f"{command[0]} answers {reply}"
            yield command, reply


def number_of(identifier):
    """An id as a pair that compares as ids do."""
    ms, _, sequence = identifier.partition(b"-")
    return int(ms), int(sequence)


# ---- streams -------------------------------------------------------------------------------------


class StreamLog:
    """The known state of one stream. Ids are kept as the server writes them."""

    def __init__(self, key):
        self.key = key
        self.sent, self.known = set(), {}  # messages; id -> message of entries known to have been stored
        self.delivered = set()  # ids
        self.ack_sent, self.acked = set(), set()
        self.delete_sent, self.deleted = set(), set()
        self.twice = []
        self.lock = threading.Lock()

    def deliver(self, entries):
        with self.lock:
            for identifier, fields in entries:
                if identifier in self.delivered:
                    self.twice.append(f"{identifier} was delivered again by >")
                self.delivered.add(identifier)
                self.known.setdefault(identifier, fields[1])

    def acknowledged(self, identifier, reply):
        with self.lock:
            if reply == 1 and identifier in self.acked:
                self.twice.append(f"{identifier} was acknowledged twice")
            self.acked.add(identifier)


class StreamProducer(Client):
    def step(self, connection):
        batch = []
        for _ in range(8):
            key = self.random.choice(STREAMS)
            message = f"{self.number}:{self.random.getrandbits(60)}".encode()
            self.log[key].sent.add(message)
            batch.append(("XADD", key, "*", "message", message))
        for (_, key, _, _, message), identifier in self.ask(connection, batch):
            if self.error is None:
                self.log[key].known[identifier] = message
        time.sleep(self.random.uniform(0, PAUSE))


class StreamConsumer(Client):
    """Reads new messages, acknowledges most of them, and now and then takes over what others left pending."""

    def step(self, connection):
        if self.random.random() < 0.1:
            key = self.random.choice(STREAMS)
            command = ("XAUTOCLAIM", key, GROUP, f"c{self.number}", "100", "0", "COUNT", "20", "JUSTID")
            for _, reply in self.ask(connection, [command]):
                if self.error is None:
                    self.finish(connection, key, reply[1])
            return
        ends = [">"] * len(STREAMS)
        command = ("XREADGROUP", "GROUP", GROUP, f"c{self.number}", "COUNT", "10", "BLOCK", str(WAIT_MS), "STREAMS")
        for _, reply in self.ask(connection, [(*command, *STREAMS, *ends)]):
            if self.error is None:
                for key, entries in reply or []:
                    self.log[key.decode()].deliver(entries)
                    done = [entry[0] for entry in entries if self.random.random() < 0.8]
                    self.finish(connection, key.decode(), done)

    def finish(self, connection, key, identifiers):
        log = self.log[key]
        log.ack_sent.update(identifiers)
        for command, reply in self.ask(connection, [("XACK", key, GROUP, one) for one in identifiers]):
            if self.error is None:
                log.acknowledged(command[3], reply)
        if key == DELETING and self.error is None:
            log.delete_sent.update(identifiers)
            for command, reply in self.ask(connection, [("XDEL", key, one) for one in identifiers]):
                if self.error is None:
                    log.deleted.add(command[2])


def pages(connection, *command):
    """All rows of XRANGE or XPENDING, a page at a time; command ends where the first id comes."""
    rows, start = [], "-"
    while True:
        page = connection.command(*command, start, "+", *(["COUNT"] if command[0] == "XRANGE" else []), str(PAGE))
        if isinstance(page, ReplyError):
            raise ValueError(f"{command[0]} answers {page}")
        rows += page
        if len(page) < PAGE:
            return rows
        start = b"(" + page[-1][0]


def fields_of(reply):
    if isinstance(reply, ReplyError):
        raise ValueError(f"XINFO answers {reply}")
    return dict(zip(reply[::2], reply[1::2]))


def verify_stream(connection, log, tally, label):
    problem = lambda kind, text: tally.problem(kind, f"{label}: {log.key}: {text}")
    for text in log.twice:
        problem("wrong", text)
    log.twice = []
    there = {identifier: fields[1] for identifier, fields in pages(connection, "XRANGE", log.key)}
    verify_entries(log, there, problem)
    # The entries that survived count from now on.
    log.known.update(there)
    gone = log.known.keys() - there.keys()
    log.deleted |= gone
    pending = {row[0]: row[1] for row in pages(connection, "XPENDING", log.key, GROUP)}
    group = verify_group(connection, log, there, pending, problem)
    info = fields_of(connection.command("XINFO", "STREAM", log.key))
    newest = max(log.known, key=number_of, default=b"0-0")
    expect = {"XLEN": (connection.command("XLEN", log.key), len(there)), "length": (info[b"length"], len(there)),
              "entries-added": (info[b"entries-added"], len(log.known)),
              "last-generated-id": (info[b"last-generated-id"], newest),
              "max-deleted-entry-id": (info[b"max-deleted-entry-id"], max(gone, key=number_of, default=b"0-0")),
              **group}
    for name, (found, wanted) in expect.items():
        if found != wanted:
            problem("wrong", f"{name} is {found}, the contents say {wanted}")


def verify_entries(log, there, problem):
    for identifier, message in log.known.items():
        if identifier not in there and identifier not in log.delete_sent:
            problem("lost", f"acknowledged {identifier} is not there")
        elif there.get(identifier, message) != message:
            problem("wrong", f"{identifier} holds {there[identifier]}, not {message}")
    for identifier, message in there.items():
        if message not in log.sent:
            problem("wrong", f"{identifier} holds {message}, never sent")
        if identifier in log.deleted:
            problem("lost", f"the acknowledged XDEL of {identifier} is undone")
    if len(set(there.values())) != len(there):
        problem("wrong", "a message is there twice")


def verify_group(connection, log, there, pending, problem):
    """Holds what is pending against the log; returns counters with what they should be."""
    groups = connection.command("XINFO", "GROUPS", log.key)
    consumers = connection.command("XINFO", "CONSUMERS", log.key, GROUP)
    if isinstance(groups, ReplyError) or isinstance(consumers, ReplyError) or not groups:
        raise ValueError(f"the group is gone: {groups}, {consumers}")
    info, consumers = fields_of(groups[0]), [fields_of(one) for one in consumers]
    last = number_of(info[b"last-delivered-id"])
    passed = {identifier for identifier in log.known if number_of(identifier) <= last}
    for identifier in pending.keys() & log.acked:
        problem("lost", f"the acknowledged XACK of {identifier} is undone")
    for identifier in log.delivered - log.ack_sent - pending.keys():
        problem("lost", f"{identifier} was delivered and is not pending")
    for identifier in log.delivered - passed:
        problem("wrong", f"{identifier} was delivered and is behind last-delivered-id")
    for identifier in passed - pending.keys() - log.ack_sent:
        problem("lost", f"{identifier} is before last-delivered-id, and neither pending nor acknowledged")
    # Deliveries and acknowledgements whose reply was cut off, and happened.
    log.delivered |= passed
    log.acked |= log.ack_sent - pending.keys()
    by_consumer = {one[b"name"]: one[b"pending"] for one in consumers}
    counted = {name: sum(owner == name for owner in pending.values()) for name in by_consumer}
    summary = connection.command("XPENDING", log.key, GROUP)
    return {"pending of XINFO GROUPS": (info[b"pending"], len(pending)),
            "pending of XINFO CONSUMERS": (by_consumer, counted), "XPENDING": (summary[0], len(pending)),
            "entries-read": (info[b"entries-read"] or 0, len(passed)),
            "lag": (info[b"lag"], len(there.keys() - passed))}


def drain_streams(server, logs, options, tally):
    """Without kills, one consumer takes and acknowledges what is left: then nothing may be left over."""
    with server.connect(120) as connection:
        for key, log in logs.items():
            try:
                drain_stream(connection, key, log)
                verify_stream(connection, log, tally, "end")
            except ValueError as failure:
                tally.problem("errors", f"end: {key}: {failure}")
            for identifier in log.known.keys() - log.acked:
                tally.problem("lost", f"end: {key}: {identifier} was never acknowledged")


def drain_stream(connection, key, log):
    def ask(*command):
        reply = connection.command(*command)
        if isinstance(reply, ReplyError):
            raise ValueError(f"{command[0]} answers {reply}")
        return reply

    while reply := ask("XREADGROUP", "GROUP", GROUP, "last", "COUNT", "500", "STREAMS", key, ">"):
        log.deliver(reply[0][1])
    while rows := ask("XPENDING", key, GROUP, "-", "+", "500"):
        identifiers = [row[0] for row in rows]
        log.ack_sent.update(identifiers)
        if ask("XACK", key, GROUP, *identifiers) != len(identifiers):
            raise ValueError("XACK counts fewer than were pending")
        log.acked.update(identifiers)


# ---- lists ---------------------------------------------------------------------------------------


class ListLog:
    """The known state of all lists together: an element is somewhere, or was popped, once."""

    def __init__(self):
        self.sent, self.pushed, self.popped = set(), set(), set()
        self.moved = {}  # element -> the list it was moved to, by its reply
        self.gone = set()  # lost with the reply to a pop that was cut off: they must not come back
        self.twice = []
        self.lock = threading.Lock()

    def pop(self, element):
        with self.lock:
            if element in self.popped:
                self.twice.append(f"{element} was popped twice")
            self.popped.add(element)
            self.moved.pop(element, None)


class ListProducer(Client):
    def step(self, connection):
        batch = []
        for _ in range(4):
            element = f"{self.number}:{self.random.getrandbits(60)}".encode()
            self.log.sent.add(element)
            batch.append(("LPUSH", self.random.choice(LISTS), element))
        for (_, _, element), _ in self.ask(connection, batch):
            if self.error is None:
                self.log.pushed.add(element)
        time.sleep(self.random.uniform(0, PAUSE))


class ListPopper(Client):
    """Waits at all lists, and pops what the movers but the first have moved: what that one moves stays."""

    def __init__(self, number, port, seed, log, taken_from=()):
        super().__init__(number, port, seed, log)
        self.keys = [*LISTS, *taken_from]
        self.under_way = False

    def step(self, connection):
        self.under_way = True
        keys = self.random.sample(self.keys, len(self.keys))
        for _, reply in self.ask(connection, [("BRPOP", *keys, WAIT_MS / 1000)]):
            if reply is not None and self.error is None:
                self.log.pop(reply[1])
        self.under_way = False


class ListMover(Client):
    def step(self, connection):
        target = target_of(self.number)
        command = ("BLMOVE", self.random.choice(LISTS), target, "RIGHT", "LEFT", WAIT_MS / 1000)
        for _, element in self.ask(connection, [command]):
            if element is not None and self.error is None:
                with self.log.lock:
                    if element in self.log.moved:
                        self.log.twice.append(f"{element} was moved twice")
                    if element not in self.log.popped:
                        self.log.moved[element] = target


def target_of(number):
    return f"taken:{number}"


def verify_lists(connection, log, keys, cut_off, tally, label):
    """cut_off: the pops whose reply the kill may have taken, each with one element at most."""
    for text in log.twice:
        tally.problem("wrong", f"{label}: {text}")
    log.twice = []
    there = {}
    for key in keys:
        elements = connection.command("LRANGE", key, "0", "-1")
        if isinstance(elements, ReplyError):
            tally.problem("errors", f"{label}: LRANGE {key} answers {elements}")
            return
        if connection.command("LLEN", key) != len(elements):
            tally.problem("wrong", f"{label}: LLEN {key} is not the number of its elements")
        for element in elements:
            if element in there:
                tally.problem("wrong", f"{label}: {element} is in {there[element]} and in {key}")
            there[element] = key
    for element, key in there.items():
        if element in log.popped or element in log.gone:
            tally.problem("wrong", f"{label}: {element} was popped and is in {key}")
        elif element not in log.sent:
            tally.problem("wrong", f"{label}: {element} in {key} was never sent")
        elif log.moved.get(element, key) != key:
            tally.problem("wrong", f"{label}: {element} was moved to {log.moved[element]} and is in {key}")
    missing = log.pushed - there.keys() - log.popped - log.gone
    if len(missing) > cut_off:
        tally.problem("lost", f"{label}: {len(missing)} elements are gone, {cut_off} replies were cut off")
    log.gone |= missing
    log.pushed |= there.keys()
    for element in missing:
        log.moved.pop(element, None)
    tally.add("cut_off", len(missing))


# ---- rounds --------------------------------------------------------------------------------------


def streams(options, tally, server, start):
    logs = {key: StreamLog(key) for key in STREAMS}

    def clients(turn):
        seed = options.seed * 1000 + turn * 100
        consumers = range(options.connections)
        return [*(StreamProducer(number, server.port, seed + number, logs) for number in range(PRODUCERS)),
                *(StreamConsumer(number, server.port, seed + 20 + number, logs) for number in consumers)]

    def verify(connection, turn, label):
        for key, log in logs.items():
            if turn == 0:
                connection.command("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM")
            try:
                verify_stream(connection, log, tally, label)
            except ValueError as failure:
                tally.problem("errors", f"{label}: {key}: {failure}")

    def done():
        return sum(len(log.known) + len(log.acked) for log in logs.values())

    if rounds(options, tally, server, start, clients, verify, done):
        drain_streams(server, logs, options, tally)


def lists(options, tally, server, start):
    log = ListLog()
    movers = max(1, options.connections // 2)
    targets = [target_of(number) for number in range(movers)]
    poppers = []

    def clients(turn):
        seed = options.seed * 1000 + turn * 100
        poppers[:] = [ListPopper(number, server.port, seed + number, log, targets[1:])
                      for number in range(options.connections - movers)]
        return [*(ListProducer(number, server.port, seed + 20 + number, log) for number in range(PRODUCERS)),
                *(ListMover(number, server.port, seed + 40 + number, log) for number in range(movers)), *poppers]

    def verify(connection, turn, label):
        cut_off = sum(popper.under_way for popper in poppers)
        verify_lists(connection, log, [*LISTS, *targets], cut_off, tally, label)

    rounds(options, tally, server, start, clients, verify, lambda: len(log.pushed) + len(log.popped) + len(log.moved))


def rounds(options, tally, server, start, clients, verify, done):
    """Starts, verifies, lets the clients work, kills; whether the server came up every time."""
    dice = random.Random(options.seed)
    for turn in range(options.kills + 1):
        label = f"round {turn}"
        seconds = start(server, tally, label)
        if seconds is None:
            return False
        with server.connect(120) as connection:
            verify(connection, turn, label)
        if turn == options.kills:
            return True
        before, working = done(), clients(turn)
        for client in working:
            client.start()
        time.sleep(dice.uniform(0.1, options.seconds))
        server.kill()
        for client in working:
            client.running = False
        for client in working:
            client.join(options.timeout)
            if client.is_alive():
                tally.problem("errors", f"{label}: a client hangs")
            if client.error:
                tally.problem("errors", f"{label}: {client.error}")
        tally.add("rounds")
        tally.add("acked", done() - before)
        print(f"{label}: up after {seconds:.2f} s, {done() - before} replies counted before the end", flush=True)
    return True
