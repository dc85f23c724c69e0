"""Looks at replicas of a cluster while `scripts/cluster` writes: does one go back, and is the lag that it states too low?"""

import statistics
import threading
import time
from collections import deque

from servers import Connection, ReplyError

# Reads for each look at the stated lag, and seconds for which acknowledgements are kept.
READS = 50
KEPT = 120


class Acknowledgements:
    """When each number of each key was acknowledged, for the last while."""

    def __init__(self, keys):
        self.times = [deque() for _ in range(keys)]

    def add(self, key, number):
        times = self.times[key]
        times.append((time.monotonic(), number))
        while times and times[0][0] < time.monotonic() - KEPT:
            times.popleft()

    def before(self, key, moment):
        """The greatest number that was acknowledged before a moment."""
        return max((number for at, number in list(self.times[key]) if at < moment), default=0)

    def age_of_first_above(self, key, number, now):
        """How long ago the first greater number was acknowledged; 0 if none was."""
        return max((now - at for at, other in list(self.times[key]) if number < other and at < now), default=0)


class ReplicaWatch(threading.Thread):
    """Reads all keys of a replica, again and again."""

    def __init__(self, port, history, acknowledgements, ending):
        super().__init__(daemon=True)
        self.port, self.history, self.acknowledgements, self.ending = port, history, acknowledgements, ending
        self.shown = [0] * len(acknowledgements.times)
        self.reads = self.understated = 0
        self.stated, self.true = [], []

    def run(self):
        link = None
        while not self.ending.is_set():
            try:
                link = link or self.connect()
                self.look(link)
            except (OSError, ConnectionError, ValueError):
                link = None
                time.sleep(0.1)

    def connect(self):
        link = Connection(self.port, timeout=10)
        link.command("READONLY")
        return link

    def look(self, link):
        asked = time.monotonic()
        lag = next(int(line.split(b":")[1]) for line in link.command("INFO", "everything").splitlines()
                   if line.startswith(b"cluster_replica_lag_ms"))
        # The lag is rounded down to milliseconds.
        bound = asked - (lag + 1) / 1000 if lag >= 0 else 0
        if lag >= 0:
            self.stated.append(lag / 1000)
        for _ in range(READS):
            key = self.reads % len(self.shown)
            least, began = self.acknowledgements.before(key, bound), time.monotonic()
            reply = link.command("GET", f"key:{key}")
            if isinstance(reply, ReplyError):
                time.sleep(0.02)
                continue
            number = int(reply or 0)
            self.reads += 1
            self.true.append(self.acknowledgements.age_of_first_above(key, number, began))
            if number < self.shown[key]:
                self.history.report("back", f"replica {self.port}: key:{key} shows {number}, and {self.shown[key]} before")
            if number < least:
                self.understated += 1
                self.history.report("lag", f"replica {self.port}: key:{key} shows {number} with a lag of {lag} ms, not {least}")
            self.shown[key] = number

    def summary(self):
        def figures(seconds):
            ordered = sorted(seconds) or [0]
            return f"median {statistics.median(ordered):.3f} s, p99 {ordered[len(ordered) * 99 // 100]:.3f} s, max {ordered[-1]:.3f} s"

        return (f"replica: {self.reads} reads, {self.understated} beyond the stated lag; stated {figures(self.stated)}; "
                f"true {figures(self.true)}")
