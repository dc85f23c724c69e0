"""The data sets of `bench cold`: strings, hashes, sets and sorted sets; their commands, and replies that are right."""

import bench_load
from bench_load import KEY_BYTES, KEY_HOLE, VALUE_FORMAT, Values, Work, template

SCORES = 10**8
# Members of a sorted set that ZRANGE returns.
PAGE = 10
# Digits of a score in a command; bytes of a score in a packed row.
SCORE_BYTES = 8


class Strings:
    """Keys of one size with a value each."""

    name, commands = "strings", ("GET", "GET-ZIPF", "SET", "SET-ZIPF", "MIXED", "GET-AFTER")

    def __init__(self, number, values):
        self.number, self.values = number, values
        self.live_bytes = number * (KEY_BYTES + values.size)

    def fill(self, choice, pipeline):
        return bench_load.sets(self.values, choice, pipeline)

    def work(self, command, choice, pipeline):
        make = {"GET": bench_load.gets, "SET": bench_load.sets, "MIXED": bench_load.halves}
        return make[command.partition("-")[0]](self.values, choice, pipeline)

    def returned(self, command):
        """Bytes that a command reads of keys and values; half of them in a mix."""
        return {"GET": self.values.size, "MIXED": self.values.size / 2}.get(command.partition("-")[0], 0)

    def sent(self, command):
        size = KEY_BYTES + self.values.size
        return {"SET": size, "MIXED": size / 2}.get(command.partition("-")[0], 0)

    def question(self, key):
        return ["GET", f"key:{key:012}"]

    def is_right(self, key, reply):
        return isinstance(reply, bytes) and self.values.right(key, reply)


class Hashes:
    """Keys with a hash each: as many fields, with values of one size."""

    name, commands = "hashes", ("HGET", "HSET")

    def __init__(self, number, fields, size):
        self.number, self.fields, self.values = number, fields, Values(size)
        self.live_bytes = number * (KEY_BYTES + fields * (len("field00") + size))
        hole = b"~" * size
        pairs = [word for field in range(fields) for word in (b"field%02d" % field, hole)]
        self.all = template("HSET", b"key:" + KEY_HOLE, *pairs).replace(hole, VALUE_FORMAT)
        self.set_one = template("HSET", b"key:" + KEY_HOLE, b"field@@", hole).replace(b"@@", b"%02d").replace(hole, VALUE_FORMAT)
        self.get_one = template("HGET", b"key:" + KEY_HOLE, b"field@@").replace(b"@@", b"%02d")

    def fill(self, choice, pipeline):
        parts, fields = self.values.parts, range(self.fields)

        def make(key, version):
            return self.all % (key, *(part for field in fields for part in parts(key, version + field)))

        return Work(self.values, {"HSET": (1, make)}, choice, pipeline, checks={})

    def work(self, command, choice, pipeline):
        fields, parts = self.fields, self.values.parts
        if command == "HSET":
            kinds = {"HSET": (1, lambda key, version: self.set_one % (key, (key * 7 + version) % fields, *parts(key, version)))}
            return Work(self.values, kinds, choice, pipeline, checks={"HSET": lambda _, line, __: line == b":0"})
        kinds = {"HGET": (1, lambda key, version: self.get_one % (key, (key * 7 + version) % fields))}
        checks = {"HGET": lambda key, _, bodies: bool(bodies) and self.values.right(key, bodies[0])}
        return Work(self.values, kinds, choice, pipeline, must_hit=True, checks=checks)

    def returned(self, command):
        return self.values.size if command == "HGET" else 0

    def sent(self, command):
        return KEY_BYTES + len("field00") + self.values.size if command == "HSET" else 0

    def question(self, key):
        return ["HGET", f"key:{key:012}", f"field{self.fields - 1:02}"]

    def is_right(self, key, reply):
        return isinstance(reply, bytes) and self.values.right(key, reply)


class Sets:
    """Keys with a set each, with members of one size; half of the members that commands name are in it."""

    name, commands = "sets", ("SISMEMBER", "SADD")

    def __init__(self, number, members, size):
        self.number, self.members = number, members
        self.live_bytes = number * (KEY_BYTES + members * size)
        self.names = [b"member:%0*d" % (size - len("member:"), member) for member in range(2 * members)]
        self.all = template("SADD", b"key:" + KEY_HOLE, *self.names[:members])
        self.asks = [template("SISMEMBER", b"key:" + KEY_HOLE, name) for name in self.names]
        self.adds = [template("SADD", b"key:" + KEY_HOLE, name) for name in self.names[:members]]

    def fill(self, choice, pipeline):
        return Work(None, {"SADD": (1, lambda key, _: self.all % key)}, choice, pipeline, checks={})

    def work(self, command, choice, pipeline):
        members, asks, adds = self.members, self.asks, self.adds
        if command == "SADD":
            kinds = {"SADD": (1, lambda key, version: adds[(key * 7 + version) % members] % key)}
            return Work(None, kinds, choice, pipeline, checks={"SADD": lambda _, line, __: line == b":0"})
        kinds = {
            "there": (1, lambda key, version: asks[(key * 7 + version) % members] % key),
            "missing": (1, lambda key, version: asks[members + (key * 7 + version) % members] % key),
        }
        checks = {"there": lambda _, line, __: line == b":1", "missing": lambda _, line, __: line == b":0"}
        return Work(None, kinds, choice, pipeline, checks=checks)

    def returned(self, _command):
        return 0

    def sent(self, _command):
        """SADD of a member that is there changes nothing."""
        return 0

    def question(self, key):
        return ["SCARD", f"key:{key:012}"]

    def is_right(self, _key, reply):
        return reply == self.members


class SortedSets:
    """Keys with a sorted set each, with members of one size."""

    name, commands = "sorted sets", ("ZRANGE", "ZADD")

    def __init__(self, number, members, size):
        self.number, self.members, self.size = number, members, size
        self.live_bytes = number * (KEY_BYTES + members * (SCORE_BYTES + size))
        self.names = [b"member:%0*d" % (size - len("member:"), member) for member in range(members)]
        score = b"@" * SCORE_BYTES
        pairs = [word for name in self.names for word in (score, name)]
        self.all = template("ZADD", b"key:" + KEY_HOLE, *pairs)
        self.adds = [template("ZADD", b"key:" + KEY_HOLE, score, name) for name in self.names]
        self.range = template("ZRANGE", b"key:" + KEY_HOLE, 0, PAGE - 1)

    def fill(self, choice, pipeline):
        members = range(self.members)

        def make(key, version):
            return self.all % (key, *((key * 31 + version + member * 7919) % SCORES for member in members))

        return Work(None, {"ZADD": (1, make)}, choice, pipeline, checks={})

    def work(self, command, choice, pipeline):
        members, adds = self.members, self.adds
        if command == "ZADD":
            kinds = {"ZADD": (1, lambda key, version: adds[(key * 7 + version) % members] % (key, key * version % SCORES))}
            return Work(None, kinds, choice, pipeline, checks={"ZADD": lambda _, line, __: line == b":0"})
        kinds = {"ZRANGE": (1, lambda key, _: self.range % key)}
        return Work(None, kinds, choice, pipeline, checks={"ZRANGE": self.are_members}, units=1 + PAGE)

    def are_members(self, _key, _line, bodies):
        return len(set(bodies)) == PAGE and all(body in self.names for body in bodies)

    def returned(self, command):
        return PAGE * self.size if command == "ZRANGE" else 0

    def sent(self, command):
        return KEY_BYTES + SCORE_BYTES + self.size if command == "ZADD" else 0

    def question(self, key):
        return ["ZCARD", f"key:{key:012}"]

    def is_right(self, _key, reply):
        return reply == self.members


COMMANDS = [command for data in (Strings, Hashes, Sets, SortedSets) for command in data.commands]


def chosen(options, strings):
    """The data sets that the cells need; `strings` is the number of keys of that one."""
    found = {
        Strings: lambda: Strings(strings, Values(options.size)),
        Hashes: lambda: Hashes(options.hashes, options.fields, options.field_size),
        Sets: lambda: Sets(options.sets, options.members, options.member_size),
        SortedSets: lambda: SortedSets(options.zsets, options.members, options.member_size),
    }
    return [make() for data, make in found.items() if set(data.commands) & set(options.cells)]
