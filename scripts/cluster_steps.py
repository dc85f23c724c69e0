"""Kills in the steps of an event of `cluster`: a server dies at one of its requests to the bucket."""

import signal
import subprocess
import time

import servers
from servers import StartFailed

# One after the other, so that each has its share.
KINDS = ("join", "kill", "move", "term", "split")
# A server is killed at a request from 1 to 2 to the power of this, small numbers more often.
MOST = 8
# Seconds for a command.
COMMAND = 90


class Fuse:
    """Kills a server before, or right behind, one of its next requests to the bucket."""

    def __init__(self, member, requests, is_behind):
        self.member, self.is_behind, self.is_burnt = member, is_behind, False
        member.bucket.after(requests, self.burn)

    def burn(self):
        # The process may not have been started, or be another one by now.
        self.is_burnt = True
        if self.is_behind:
            time.sleep(0.003)
        self.member.server.process.send_signal(signal.SIGKILL)

    def end(self):
        """Kills the server if it still runs, and starts it."""
        self.member.bucket.after(0, None)
        self.member.server.kill()
        self.member.start()
        return "" if self.is_burnt else ", behind its last step"


class Steps:
    """See the module. Each method is a kind of event."""

    def __init__(self, events, make_member, is_whole):
        self.events, self.make_member, self.is_whole, self.number = events, make_member, is_whole, 0

    def carry_out(self, member):
        """A remark."""
        kind, dice = KINDS[self.number % len(KINDS)], self.events.dice
        self.number += 1
        requests = round(2 ** dice.uniform(0, MOST))
        note = getattr(self, kind)(member, (requests, dice.random() < 0.5))
        return f"{kind}, killed at request {requests}{note}"

    def other_than(self, member):
        return self.events.dice.choice([other for other in self.events.members if other is not member])

    def join(self, _, when):
        more = self.make_member()
        fuse = Fuse(more, *when)
        try:
            more.start()
            self.events.leases(1, 3)
        except StartFailed:
            pass
        finally:
            more.close()
        return "" if fuse.is_burnt else ", behind its last step"

    def kill(self, member, when):
        heir = self.other_than(member)
        fuse = Fuse(heir, *when)
        member.server.kill()
        others = [other for other in self.events.members if other is not member]
        until = time.monotonic() + self.events.options.patience
        while not fuse.is_burnt and not self.is_whole(others) and time.monotonic() < until:
            time.sleep(0.05)
        note = fuse.end()
        member.start()
        return note

    def term(self, member, when):
        fuse = Fuse(member, *when)
        member.server.process.send_signal(signal.SIGTERM)
        member.server.process.wait(timeout=COMMAND)
        return fuse.end()

    def move(self, member, when):
        shard = self.events.dice.randrange(self.events.options.shards)
        target = self.other_than(member)
        return self.command(member, when, "move", str(shard), "--to", self.events.node_of(target))

    def split(self, member, when):
        shard = str(self.events.dice.randrange(self.events.options.shards))
        note = self.command(member, when, "split", shard, "--timeout", "10")
        self.run("split", shard, "--cancel")
        return note

    def command(self, member, when, *words):
        fuse = Fuse(member, *when)
        # It may fail: a server that takes part is lost.
        self.run(*words)
        return fuse.end()

    def run(self, *words):
        command = [*servers.command_of(self.events.options.binary), "cluster", *words, "--store", self.events.store]
        subprocess.run(command, capture_output=True, timeout=COMMAND)
