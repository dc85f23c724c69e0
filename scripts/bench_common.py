"""Shared parts of all modes of `bench`: the servers to compare, redis-benchmark, the report."""

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import servers
from servers import HOST, Server, fail

# By default the file is rewritten whenever it has doubled, by a child whose CPU is not counted.
REDIS_EXTRA = ["--auto-aof-rewrite-percentage", "0"]
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def load(server, options, *arguments):
    """Runs redis-benchmark and returns its output."""
    command = [options.load_generator, "-h", HOST, "-p", str(server.port), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0 or "Error from server" in done.stdout + done.stderr:
        fail(f"{' '.join(command)} on {server.name}: {(done.stdout + done.stderr)[-500:]}\n{server.log_tail()}")
    return done.stdout


def references(options, mode):
    """The servers to compare with: redis, valkey; a second of a kind gets a number."""
    found, names = [], []
    for binary in options.redis:
        kind = "valkey" if "valkey" in Path(binary.split()[0]).name else "redis"
        names.append(kind)
        name = kind if names.count(kind) == 1 else f"{kind}-{names.count(kind)}"
        found.append(Server(binary, mode, name=name, extra=[] if options.rewrite else REDIS_EXTRA))
    return found


def ours(options, mode):
    """Ours, once for each number of workers."""
    found = []
    for workers in options.workers:
        fixed = [] if options.rewrite else REDIS_EXTRA
        extra = fixed if servers.is_reference(options.ours) else options.server_arguments
        found.append(Server(options.ours, mode, workers, options.shards or workers, options.memory_budget, extra,
                            f"ours-w{workers}"))
    return found


def targets(options, mode):
    """The servers to compare, the references first."""
    return [*references(options, mode), *ours(options, mode)]


def is_ours(name):
    return name.startswith("ours")


def rotated(found, turn):
    """The order of a round: each server is first, second and so on equally often in as many rounds as there are servers."""
    first = turn % len(found)
    return found[first:] + found[:first]


def machine(options):
    versions = [subprocess.run([*servers.command_of(binary), "--version"], capture_output=True, text=True).stdout.strip()
                for binary in options.redis]
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kernel": platform.release(),
            "cpus": os.cpu_count(), "cpu": cpu_model(), "reference": ", ".join(versions), "ours": options.ours,
            "arguments": sys.argv[1:]}


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())


def write_json(options, report):
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


def raise_open_files(connections):
    """Makes room for that many connections; returns how many clients a server is to allow."""
    if connections > 15000:
        fail("at most 15000 connections")
    needed = connections + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        if hard < needed:
            fail(f"{needed} open files are needed, the hard limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return needed


def byte_count(text):
    """`256mb` as a number: k, m and g are powers of 1000, kb, mb and gb of 1024, as the server reads them."""
    match = re.fullmatch(r"(\d+)(k|kb|m|mb|g|gb|b|)", text.lower())
    if match is None:
        fail(f"{text} is no number of bytes")
    power = "kmg".find(match[2][:1]) + 1 if match[2] not in ("", "b") else 0
    return int(match[1]) * (1024 if match[2].endswith("b") else 1000) ** power


def need_disk(live_bytes):
    """Ends the script when the disk has no room for data of that size, its copies during compaction and journals."""
    where = servers.scratch_directory() or "/tmp"
    needed, free = 3 * live_bytes + (2 << 30), shutil.disk_usage(where).free
    if free < needed:
        fail(f"{needed >> 20} MB of disk are needed in {where}, {free >> 20} MB are free")


def drop_caches():
    """Empties the machine's page cache; False where that is not allowed."""
    try:
        os.sync()
        DROP_CACHES.write_text("3")
        return True
    except OSError:
        return False


class Usage:
    """The resources that a server uses from now on until since() is asked: CPU of all threads and of the busiest worker, reads, writes."""

    def __init__(self, server):
        self.server = server
        self.cpu, self.by_worker, self.io = server.cpu_seconds(), server.cpu_by_worker(), server.io()

    def since(self):
        cpu, by_worker, io = self.server.cpu_seconds(), self.server.cpu_by_worker(), self.server.io()
        busiest = max(after - self.by_worker.get(thread, 0) for thread, after in by_worker.items())
        return {"cpu_s": cpu - self.cpu, "worker_s": busiest} | {name: io[name] - before for name, before in self.io.items()}
