"""The parts of `lives` that all kinds of histories have: a directory, its server, kills, and the subcommands."""

import random
import subprocess
import threading
from pathlib import Path

import servers
from servers import Server, StartFailed

# Long, as machines that are busy with something else take long.
SECONDS = 300
KILLS = 5
BATCH = 500
MIB = 1 << 20
# Histories that begin at the same time do not get the same port.
PORTS = threading.Lock()


class Wrong(Exception):
    """Something is not as it should be."""


class History:
    """A server that is killed 0 to 5 times."""

    kind = ""

    def __init__(self, options, number, root):
        self.options, self.random = options, random.Random(options.seed * 1_000_003 + number)
        self.directory, self.number = Path(root) / f"{self.kind}-{number}", number
        self.directory.mkdir()
        self.kills = number % (KILLS + 1)
        self.places, self.made = 0, {}
        with PORTS:
            self.port, self.tls_port = servers.free_port(), servers.free_port()

    def described(self):
        return f"history {self.number} of {self.kind}: {self.kills} kills"

    def place(self, name):
        """A place where nothing is."""
        self.places += 1
        return str(self.directory / f"{name}-{self.places}")

    def server(self, place, workers, budget, extra):
        """A server of the data in a place, on this disk."""
        self.places += 1
        home = self.directory / f"server-{self.places}"
        home.mkdir()
        with PORTS:
            server = Server(self.options.ours, "always", workers, None, budget, extra, f"{self.number}", home)
            servers.PORTS_GIVEN.discard(server.port)
        # One at a time.
        server.port, server.store, server.data = self.port, None, Path(place)
        return server

    def start(self, server):
        try:
            server.start(SECONDS)
        except StartFailed as failed:
            raise Wrong(f"it does not start: {failed}") from failed

    def stop(self, server, when):
        status = server.terminate(SECONDS)
        if status != 0:
            raise Wrong(f"{when}: SIGTERM ends it with {status}:\n{server.log_tail(6)}")

    def count(self, name):
        self.made[name] = self.made.get(name, 0) + 1

    def attempt(self, *words):
        """Runs a subcommand; its exit status, and what it prints."""
        done = subprocess.run([*servers.command_of(self.options.ours), *map(str, words)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
        return done.returncode, done.stdout

    def tool(self, *words):
        """Runs a subcommand, which must succeed; what it prints."""
        status, said = self.attempt(*words)
        if status != 0:
            raise Wrong(f"flagstone {' '.join(map(str, words))}: exit status {status}: {said}")
        return said

    def check(self, place, when):
        try:
            self.tool("check", "--dir", place)
        except Wrong as wrong:
            raise Wrong(f"{when}: {wrong}") from wrong
