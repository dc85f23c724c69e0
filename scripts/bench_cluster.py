"""`bench cluster`: throughput and CPU of clusters of some servers over one bucket, next to a single server over it."""

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import servers
from bench_common import load, machine, write_json
from servers import HOST, Connection, Server, StartFailed, fail

# Seconds until a cluster has shared out its shards.
SHARING = 120


def cluster(options):
    """In each round every group of servers in turn: all run all the time, so that idle ones cost each the same."""
    report = {"machine": machine(options), "groups": {}}
    groups = []
    print(f"{'servers':>8} {'cell':8} {'ops/s':>9} {'ratio':>6} {'µs/op':>7} {'ratio':>6}")
    try:
        for number in [0, *options.servers]:
            groups.append(Group(options, number))
            groups[-1].start()
        for cell in options.cells:
            for pipeline in options.pipelines:
                rounds = [[] for _ in groups]
                for turn in range(options.rounds):
                    for at in range(len(groups)):
                        at = (at + turn) % len(groups)
                        rounds[at].append(groups[at].measure(cell, pipeline))
                rows = [[statistics.median(one[column] for one in all_rounds) for column in (0, 1)] for all_rounds in rounds]
                for group, (per_s, cpu_us) in zip(groups, rows):
                    print(f"{group.name:>8} {f'{cell} P{pipeline}':8} {per_s:9.0f} {per_s / rows[0][0]:6.2f} {cpu_us:7.2f}"
                          f" {cpu_us / rows[0][1]:6.2f}", flush=True)
                    report["groups"].setdefault(group.name, {})[f"{cell} P{pipeline}"] = {"per_s": per_s, "cpu_us": cpu_us}
    finally:
        for group in groups:
            group.close()
    write_json(options, report)


class Group:
    """The servers of one cluster, or a single server (0)."""

    def __init__(self, options, number):
        self.options, self.number = options, number
        self.name = str(number) if number else "single"
        self.scratch = Path(tempfile.mkdtemp(prefix="flagstone-cluster-", dir=servers.scratch_directory()))
        extra = ["--store", f"bucket+file://{self.scratch}/bucket"]
        if number:
            extra += ["--cluster-enabled", "yes", "--cluster-announce-ip", HOST]
        make = lambda at: Server(options.ours, options.modes[0], options.workers[0], options.shards or 32, options.memory_budget,
                                 extra, f"{self.name}-{at}")
        self.servers = [make(at) for at in range(max(1, number))]

    def start(self):
        for server in self.servers:
            server.start()
        deadline = time.monotonic() + SHARING
        while self.number and not all(has_its_share(server, self) for server in self.servers):
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.number} servers have not shared the shards out within {SHARING} s")
            time.sleep(0.2)

    def measure(self, cell, pipeline):
        """Operations per second, and the servers' CPU of one in µs."""
        options = self.options
        operations = options.operations if pipeline > 1 else options.operations // 8
        words = ["-t", cell.lower(), "-P", pipeline, "-n", operations, "-c", options.clients[0], "-d", options.size,
                 "-r", options.keys, "--csv"]
        # redis-benchmark takes one server for no cluster.
        if self.number > 1:
            words.append("--cluster")
        before = sum(server.cpu_seconds() for server in self.servers)
        text = load(self.servers[0], options, *words)
        cpu = sum(server.cpu_seconds() for server in self.servers) - before
        rows = [line for line in text.splitlines() if line.upper().startswith(f'"{cell}')]
        if not rows:
            fail(f"{options.load_generator} has no figures for {cell}:\n{text[-2000:]}")
        return float(rows[-1].split(",")[1].strip('"')), cpu / operations * 1e6

    def close(self):
        for server in self.servers:
            server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def has_its_share(server, group):
    with Connection(server.port) as connection:
        info = connection.command("INFO", "everything").decode()
    served = [line for line in info.splitlines() if line.startswith("cluster_shards_served:")]
    least = (group.options.shards or 32) // len(group.servers)
    return bool(served) and int(served[0].partition(":")[2]) >= least
