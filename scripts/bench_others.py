"""Other servers for `bench cold`, beside redis-server: Kvrocks, any program that is told port and directory, one that runs
already."""

import re
import shlex
import types
from pathlib import Path

import servers
from bench_common import byte_count
from servers import Server, fail


class Other(Server):
    """A program with the arguments of a template: {port}, {dir}, {workers}, {memory} in bytes, {megabytes} of that."""

    def __init__(self, template, options, name):
        super().__init__(template, options.modes[0], options.workers[0], budget=options.memory_budget, name=name)
        self.reference, self.store = True, None

    def argv(self):
        memory = byte_count(self.budget)
        known = {"port": self.port, "dir": self.data, "workers": self.workers, "memory": memory, "megabytes": memory >> 20}
        words = [re.sub(r"\{(\w+)\}", lambda hole: str(known.get(hole[1], hole[0])), word) for word in shlex.split(self.binary)]
        return [*servers.command_of(shlex.quote(words[0])), *words[1:]]


class Kvrocks(Other):
    """Half of the memory is the block cache, the other half the write buffers of one column family. The log is not synced: that
    is weaker than `everysec`; for `always` it is."""

    def argv(self):
        megabytes = byte_count(self.budget) >> 20
        given = {
            "bind": servers.HOST, "port": self.port, "dir": self.data, "workers": self.workers, "daemonize": "no",
            "rocksdb.block_cache_size": max(1, megabytes // 2), "rocksdb.write_buffer_size": max(1, megabytes // 8),
            "rocksdb.max_write_buffer_number": 4, "rocksdb.compression": "no",
            "rocksdb.write_options.sync": "yes" if self.mode == "always" else "no",
        }
        return [*servers.command_of(self.binary), *(str(word) for name, value in given.items() for word in (f"--{name}", value))]


class Running(Server):
    """A server on loopback that somebody else has started, whose keys are ours as long as this runs: it must be empty, and is
    emptied again. Its process is found by INFO, its files by CONFIG GET dir; without leave to read /proc/PID/io it fails."""

    def __init__(self, name, port):
        self.name, self.port, self.reference, self.process = name, port, True, None
        self.mode, self.binary, self.directory, self.log = "as it runs", name, Path("/"), Path("/nonexistent")

    def start(self, _timeout=60):
        try:
            with self.connect() as connection:
                pid = re.search(rb"process_id:(\d+)", connection.command("INFO", "server"))
                directory = connection.command("CONFIG", "GET", "dir")
                if connection.command("RANDOMKEY") is not None:
                    fail(f"the server at {servers.HOST}:{self.port} holds keys: it has to be empty, as it is emptied at the end")
        except (OSError, TypeError) as error:
            fail(f"no answer from the server at {servers.HOST}:{self.port}: {error}")
        if pid is None or not isinstance(directory, list) or len(directory) != 2:
            fail(f"the server at {servers.HOST}:{self.port} does not tell its process_id (INFO) and its dir (CONFIG GET)")
        self.process, self.data = types.SimpleNamespace(pid=int(pid[1])), Path(directory[1].decode())
        self.io()
        return self

    def kill(self):
        pass

    def close(self):
        if self.process is not None:
            with self.connect(600) as connection:
                connection.command("FLUSHALL")


def others(options):
    """The other servers that the options name, not started."""
    found = [Kvrocks(path, options, "kvrocks") for path in options.kvrocks]
    for text in options.other:
        name, equals, what = text.partition("=")
        running = re.fullmatch(r"(?:127\.0\.0\.1|localhost):(\d+)", what)
        if not name or not equals or not what:
            fail(f"--other {text}: NAME=COMMAND or NAME=127.0.0.1:PORT is expected")
        if running:
            found.append(Running(name, int(running[1])))
        elif "{port}" in what and "{dir}" in what:
            found.append(Other(what, options, name))
        elif servers.is_reference(what):
            found.append(Server(what, options.modes[0], name=name))
        else:
            fail(f"--other {text}: the command has to name {{port}} and {{dir}}")
    return found
