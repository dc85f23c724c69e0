"""The histories of `lives` with large elements: hashes, lists and sets, one of them several times the memory budget, the
elements of which have 0.5 to 5 MB.

Elements are added, replaced, removed, and expire; whole keys are deleted, expire, are renamed, copied, and
replaced by others; the server is killed meanwhile, and what it did in the background begins anew. In each
life all is looked at in pages and compared, one element at a time. The most memory that the server has had is MOST
budgets, and that of `flagstone check` CHECKED.
"""

import random
import time
from pathlib import Path
from typing import NamedTuple

import servers
from lives_common import MIB, SECONDS, History, Wrong
from servers import ReplyError

BUDGET = 64 * MIB
# Above the budget there are a page of 8 MiB, records of the journal, requests and replies of 5 MB, and the process itself.
MOST, CHECKED = 4, 5
SMALLEST, LARGEST = 500_000, 5_000_000
# Keys of a type, elements that one begins with, and the bytes from which on it only shrinks: small ones, and the tall one.
KEYS, FIRST, FULL = 2, (1, 6), 16 * MIB
TALL_KEYS, TALL_FIRST, TALL_FULL = 1, (30, 55), 160 * MIB
FIELDS = 100
# Seconds that a life goes on at most for what is done in the background.
LINGERS = 1.0
SOON_MS = (30, 300, 3000)
# Elements of a page: a reply of more may be too large for the clients' memory.
COUNTS = (1, 3)
TYPES = {dict: "hash", list: "list", set: "set"}


class Element(NamedTuple):
    """What the bytes of an element are made of."""

    seed: int
    size: int

    def text(self):
        return random.Random(self.seed).randbytes(self.size)


class LargeElements(History):
    """One history. What is to expire is in no model."""

    kind = "large"

    def __init__(self, options, number, root):
        super().__init__(options, number, root)
        # Keys that were to expire have names of their own: nobody writes to them any more.
        self.model, self.expiring, self.serial, self.most = {}, [], 0, 0
        self.tall = self.random.choice(list(TYPES))
        extra = ["--handover-interval-ms", self.random.choice(("50", "1000")), "--compression", self.random.choice(("none", "lz4"))]
        self.main = self.server(self.place("data"), self.random.choice((1, 2)), BUDGET, extra)
        self.main.shards = self.random.choice((1, 2))

    def described(self):
        return f"{super().described()}, at most {self.most / BUDGET:.1f} budgets of memory"

    # ---- changes ---------------------------------------------------------------------------------

    def element(self):
        self.serial += 1
        return Element(self.options.seed << 40 | self.number << 20 | self.serial, self.random.randrange(SMALLEST, LARGEST))

    def some(self, found):
        """Some of these, at least one."""
        found = sorted(found)
        return self.random.sample(found, self.random.randrange(1, min(len(found), 4) + 1))

    def ask(self, *words):
        reply = self.connection.command(*words)
        if isinstance(reply, ReplyError):
            raise Wrong(f"{words[0]} {words[1]}: {reply}")
        return reply

    def expect(self, element, found, what):
        if found is None or len(found) != element.size or found != element.text():
            raise Wrong(f"{what}: {found if found is None else len(found)} bytes, which are not the {element.size} of it")

    def key_of(self, type_of):
        """A key of a type, new if there are few."""
        keys = [key for key, value in self.model.items() if type(value) is type_of]
        if len(keys) < (TALL_KEYS if type_of is self.tall else KEYS):
            self.serial += 1
            key = f"{TYPES[type_of]}:{self.serial}"
            self.model[key] = type_of()
            for _ in range(self.random.randrange(*(TALL_FIRST if type_of is self.tall else FIRST))):
                self.add(key, self.model[key])
            return key
        return self.random.choice(keys)

    def add(self, key, value):
        element = self.element()
        if isinstance(value, dict):
            field = f"f{self.random.randrange(FIELDS)}"
            value[field] = element
            self.ask("HSET", key, field, element.text())
        elif isinstance(value, set):
            value.add(element)
            self.ask("SADD", key, element.text())
        elif value and self.random.random() < 0.3:
            at = self.random.randrange(len(value))
            value[at] = element
            self.ask("LSET", key, at, element.text())
        elif self.random.random() < 0.3:
            value.insert(0, element)
            self.ask("LPUSH", key, element.text())
        else:
            value.append(element)
            self.ask("RPUSH", key, element.text())

    def remove(self, key, value):
        if isinstance(value, dict):
            gone, after = self.some(value), self.random.choice(SOON_MS)
            expire = ("HPEXPIRE", key, after, "FIELDS", len(gone)), ("HSETEX", key, "PX", after, "FIELDS", 1)
            how = self.random.randrange(3)
            if how == 2:
                del gone[1:]
            pairs = [gone[0], self.element().text()] if how == 2 else gone
            self.ask(*(expire[how - 1] if how else ("HDEL", key)), *pairs)
            for field in gone:
                del value[field]
        elif isinstance(value, set):
            if self.random.random() < 0.5:
                drawn = self.ask("SPOP", key)
                gone = [element for element in value if element.size == len(drawn) and element.text() == drawn]
                if not gone:
                    raise Wrong(f"SPOP {key}: {len(drawn)} bytes that are no member")
            else:
                gone = self.some(value)
                self.ask("SREM", key, *(element.text() for element in gone))
            value.difference_update(gone)
        elif self.random.random() < 0.5:
            at = self.random.choice((0, -1))
            self.expect(value.pop(at), self.ask("RPOP" if at else "LPOP", key), f"an end of {key}")
        else:
            first, last = self.random.randrange(2), len(value) - self.random.randrange(2)
            if self.random.random() < 0.2:
                first, last = sorted(self.random.choices(range(len(value)), k=2))
            value[:] = value[first:last + 1]
            self.ask("LTRIM", key, first, last)

    def change_key(self, key):
        """Does something to a whole key."""
        value = self.model[key]
        how = self.random.choice(("DEL", "UNLINK", "PEXPIRE", "SET", "RENAME", "COPY"))
        if how in ("RENAME", "COPY"):
            other = self.key_of(type(value))
            # Fields may still expire in it: it is no name for another value.
            if other != key and self.random.random() < 0.5:
                self.ask("DEL", other)
            self.model[other] = type(value)(value)
            if other != key:
                self.ask(how, key, other, *(["REPLACE"] if how == "COPY" else []))
            if how == "COPY" or other == key:
                return
        elif how == "PEXPIRE":
            self.ask("PEXPIRE", key, self.random.choice(SOON_MS))
            self.expiring.append(key)
        elif how == "SET":
            self.ask("SET", key, "small")
            self.ask("DEL", key)
        else:
            self.ask(how, key)
        del self.model[key]

    def write(self):
        for _ in range(self.random.randrange(5, self.options.elements)):
            key = self.key_of(self.random.choice(list(TYPES)))
            value = self.model[key]
            elements, full = value.values() if isinstance(value, dict) else value, TALL_FULL if type(value) is self.tall else FULL
            if self.random.random() < 0.1:
                self.change_key(key)
            elif value and (self.random.random() < 0.4 or sum(element.size for element in elements) > full):
                self.remove(key, value)
            else:
                self.add(key, value)
            for empty in [key for key, value in self.model.items() if not value]:
                self.expiring.append(empty)
                del self.model[empty]

    # ---- looks -----------------------------------------------------------------------------------

    def look(self):
        """Looks at parts of values, and at all of them in pages."""
        for key, value in self.model.items():
            if isinstance(value, list):
                at = self.random.randrange(len(value))
                self.expect(value[at], self.ask("LINDEX", key, at), f"LINDEX {key} {at}")
                for offset, found in enumerate(self.ask("LRANGE", key, at, at + 1)):
                    self.expect(value[at + offset], found, f"LRANGE {key} {at}")
                continue
            command, cursor, seen = "HSCAN" if isinstance(value, dict) else "SSCAN", b"0", set()
            while cursor != b"0" or not seen:
                cursor, found = self.ask(command, key, cursor, "COUNT", self.random.choice(COUNTS))
                step = 2 if command == "HSCAN" else 1
                seen.update(name.decode() if step == 2 else name[:16] for name in found[::step])
                if cursor == b"0":
                    break
            named = set(value) if isinstance(value, dict) else {element.text()[:16] for element in value}
            if not named <= seen:
                raise Wrong(f"{command} {key} lacks {len(named - seen)} of {len(named)}")
            self.ask("HRANDFIELD" if isinstance(value, dict) else "SRANDMEMBER", key, 2)

    def compare(self, when):
        lengths = {dict: "HLEN", list: "LLEN", set: "SCARD"}
        self.until(lambda: not self.expiring or not self.ask("EXISTS", *self.expiring), f"{when}: keys do not expire")
        for key, value in self.model.items():
            length = lengths[type(value)]
            self.until(lambda: self.ask(length, key) == len(value), f"{when}: {length} {key} does not get to {len(value)}")
            if isinstance(value, set):
                for element in value:
                    if not self.ask("SISMEMBER", key, element.text()):
                        raise Wrong(f"{when}: {key} lacks a member of {element.size} bytes")
            else:
                for name, element in value.items() if isinstance(value, dict) else enumerate(value):
                    found = self.ask("HGET" if isinstance(value, dict) else "LINDEX", key, name)
                    self.expect(element, found, f"{when}: {key} {name}")
        if (size := self.ask("DBSIZE")) != len(self.model):
            raise Wrong(f"{when}: DBSIZE is {size}, there are {len(self.model)} keys")

    def until(self, is_so, what):
        deadline = time.monotonic() + SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise Wrong(what)
            time.sleep(0.05)

    def held(self, most, who, budgets=MOST):
        self.most = max(self.most, most)
        if most > budgets * BUDGET:
            raise Wrong(f"{who} has had {most / MIB:.0f} MiB, with a budget of {BUDGET // MIB}")

    # ---- lives -----------------------------------------------------------------------------------

    def live(self, when):
        self.start(self.main)
        with self.main.connect(SECONDS) as self.connection:
            self.compare(when)
            self.held(self.main.peak_rss_bytes(), f"{when}: the server, until all was compared,")
            self.write()
            self.look()
            time.sleep(self.random.uniform(0, LINGERS))
            self.held(self.main.peak_rss_bytes(), f"{when}: the server")

    def run(self):
        data, backups = self.main.data, self.place("backups")
        try:
            for life in range(self.kills + 1):
                self.live(f"life {life}")
                if life == self.kills:
                    self.tool("backup", "--dir", data, "--to", backups, "--port", self.port)
                    self.held(self.main.peak_rss_bytes(), "the server, beside a backup,")
                self.main.kill()
            self.checked(data)
            restored = Path(self.place("restored"))
            self.tool("restore", "--from", backups, "--dir", restored)
            for place, name in ((data, "original"), (restored, "backup")):
                self.main.data = place
                self.start(self.main)
                with self.main.connect(SECONDS) as self.connection:
                    self.compare(name)
                self.held(self.main.peak_rss_bytes(), name)
                self.stop(self.main, name)
                self.count(f"{name} with large elements")
        finally:
            self.main.kill()

    def checked(self, place):
        try:
            _, peak, _ = servers.run(*servers.command_of(self.options.ours), "check", "--dir", place)
        except SystemExit as ended:
            raise Wrong(str(ended)) from ended
        self.held(int(peak * MIB), "flagstone check", CHECKED)
