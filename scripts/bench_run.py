"""`bench run`: cells of one command each, on all servers in turn."""

import csv
import statistics

import bench_transactions as transactions
import servers
from bench_common import Usage, is_ours, load, machine, rotated, targets, write_json

WRITES = {"SET", "INCR", "LPUSH", "RPUSH", "LPOP", "SADD", "HSET", "ZADD", "MSET"}
COMMANDS = ["GET", *sorted(WRITES), "LRANGE_100", "ZRANGE", *transactions.KINDS]
# The commands that make the data of a cell before it runs: redis-benchmark's own tests, or whole commands.
LOADED = {"LPOP": ["-t", "lpush"], "LRANGE_100": ["-t", "lpush"], "ZRANGE": ["-t", "zadd"]}
# Cells that are no test of redis-benchmark's, or one that first writes what it reads.
WHOLE = {"ZRANGE": ["ZRANGE", "myzset", "0", "99"], "LRANGE_100": ["LRANGE", "mylist", "0", "99"]}
# The types that the cells leave behind: strings, if nothing is said.
TYPES = {"LPUSH": "list", "RPUSH": "list", "LPOP": "list", "LRANGE_100": "list", "SADD": "set", "HSET": "hash",
         "ZADD": "zset", "ZRANGE": "zset"}


class Cell:
    """One command with its load, and the measurements by server."""

    def __init__(self, command, pipeline, size, clients, options):
        self.command, self.pipeline, self.size, self.clients = command, pipeline, size, clients
        self.operations = options.operations_p1 if pipeline == 1 else options.operations
        self.options = options
        self.rounds = {}
        self.busy = set()

    def name(self):
        return f"{self.command} P{self.pipeline} d{self.size} c{self.clients}"

    def arguments(self):
        shape = ["-n", self.operations, "-P", self.pipeline, "-d", self.size, "-c", self.clients, "-r", self.options.keys]
        test = [] if self.command in WHOLE else ["-t", self.command.lower()]
        return [*shape, "--csv", *test, *WHOLE.get(self.command, [])]

    def group(self):
        """Cells of a group may follow each other on one data set, even with --fresh."""
        return TYPES.get(self.command, "string"), self.size

    def prepare(self, server, found):
        """Gives the command what it is to find: LPUSH nothing, LPOP a long list. Then waits for background work of all
        servers, not this one's only: they share the machine."""
        if self.command in ("LPUSH", "RPUSH", "LPOP"):
            server.command("DEL", "mylist")
        if self.command in LOADED:
            load(server, self.options, *LOADED[self.command], "-n", self.operations, "-P", 64, "-d", self.size,
                 "-r", self.options.keys)
        if servers.settle(found, self.options.settle):
            self.busy.add(server.name)

    def measure(self, server, found):
        self.prepare(server, found)
        usage = Usage(server)
        result = self.generate(server)
        used = usage.since()
        result["cpu_us"] = used["cpu_s"] / self.operations * 1e6
        result["worker_us"] = used["worker_s"] / self.operations * 1e6
        self.rounds.setdefault(server.name, []).append(result)

    def generate(self, server):
        """Runs the load; its throughput and latencies."""
        output = load(server, self.options, *self.arguments())
        figures = next(row for row in csv.reader(output.splitlines()) if row and row[0].startswith(self.command.partition("_")[0]))
        names = ("rps", "avg_ms", "min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")
        return dict(zip(names, map(float, figures[1:])))

    def summary(self, name):
        """Medians over the rounds of one server; the greatest max."""
        rounds = self.rounds[name]
        result = {key: statistics.median(entry[key] for entry in rounds) for key in rounds[0]}
        result["max_ms"] = max(entry["max_ms"] for entry in rounds)
        result["busy"] = name in self.busy
        return result


class TransactionCell(Cell):
    """A cell whose operations are whole transactions, or scripts."""

    def __init__(self, command, pipeline, size, clients, options):
        super().__init__(command, pipeline, size, clients, options)
        self.operations = max(1, self.operations // transactions.KINDS[command].weight)
        self.batches = None

    def generate(self, server):
        if self.batches is None:
            self.batches = transactions.Batches(self.command, self.pipeline, self.size, self.options.keys)
        return transactions.generate(server, self.batches, self.clients, self.operations)


def run(options):
    report = {"machine": machine(options), "modes": {}}
    for mode in options.modes:
        report["modes"][mode] = run_mode(options, mode)
        write_json(options, report)
    print_best(report)
    print_scaling(report)


def run_mode(options, mode):
    found = targets(options, mode)
    try:
        for server in found:
            server.start()
        print_head()
        rows, group = [], None
        for cell in cells(options):
            if group is None or (options.fresh and group != cell.group()):
                for server in found:
                    fill(server, cell, options)
            group = cell.group()
            for turn in range(options.rounds):
                for server in rotated(found, turn):
                    cell.measure(server, found)
            rows += cell_rows(cell, found, mode)
        memory = {server.name: server.rss_bytes() for server in found}
        disk = {server.name: server.disk_bytes() for server in found}
        for server in found:
            print(f"{mode:9} {server.name:8} RSS {memory[server.name] >> 20} MB, disk {disk[server.name] >> 20} MB")
        return {"rows": rows, "rss_bytes": memory, "disk_bytes": disk}
    finally:
        for server in found:
            server.close()


def fill(server, cell, options):
    """The data set that cells find: the same on every server, and nothing else."""
    server.command("FLUSHALL")
    size = cell.size if options.fresh else 64
    load(server, options, "-t", "set", "-n", options.prefill, "-P", 64, "-d", size, "-r", options.keys, "-q")


def cells(options):
    found = []
    for clients in options.clients:
        for size in options.sizes:
            for pipeline in options.pipelines:
                for command in options.cells:
                    kind = TransactionCell if command in transactions.KINDS else Cell
                    found.append(kind(command, pipeline, size, clients, options))
    if options.fresh:
        groups = list(dict.fromkeys(cell.group() for cell in found))
        found.sort(key=lambda cell: groups.index(cell.group()))
    return found


def print_head():
    print(f"\n{'mode':9} {'cell':20} {'server':8} {'k ops/s':>9} {'ratio':>6} {'µs/op':>7} {'worker':>7}"
          f" {'p50 ms':>7} {'p99 ms':>7} {'max ms':>8}", flush=True)


def cell_rows(cell, found, mode):
    """Prints and returns one row per server; ratio is throughput over that of the first server."""
    base = cell.summary(found[0].name)["rps"]
    rows = []
    for server in found:
        figures = cell.summary(server.name)
        row = {"cell": cell.name(), "server": server.name, "operations": cell.operations, "ratio": figures["rps"] / base}
        row |= figures | {"rounds": cell.rounds[server.name]}
        rows.append(row)
        print(f"{mode:9} {row['cell']:20} {row['server']:8} {row['rps'] / 1000:9.1f} {row['ratio']:6.2f}"
              f" {row['cpu_us']:7.2f} {row['worker_us']:7.2f} {row['p50_ms']:7.2f} {row['p99_ms']:7.2f}"
              f" {row['max_ms']:8.2f}{' *' if row['busy'] else ''}"
              f"{' load %.2f' % row['load'] if 'load' in row else ''}", flush=True)
    return rows


def print_best(report):
    """The better of our numbers of workers."""
    for mode, result in report["modes"].items():
        base = result["rows"][0]["server"]
        print(f"\nratio of throughput to {base}, the better number of workers:")
        best = {}
        for row in result["rows"]:
            if is_ours(row["server"]):
                best[row["cell"]] = max(best.get(row["cell"], (0, "")), (row["ratio"], row["server"]))
        for cell, (ratio, server) in best.items():
            print(f"  {mode:9} {cell:20} {ratio:5.2f}  {server}")


def print_scaling(report):
    """Throughput and CPU of each number of workers over those of the first number."""
    for mode, result in report["modes"].items():
        by_cell = {}
        for row in result["rows"]:
            if is_ours(row["server"]):
                by_cell.setdefault(row["cell"], []).append(row)
        if all(len(rows) < 2 for rows in by_cell.values()):
            continue
        print("\nscaling with workers, of throughput (and of CPU per operation):")
        for cell, (first, *others) in by_cell.items():
            steps = (f"{first['server']} -> {row['server']} {row['rps'] / first['rps']:.2f}"
                     f" ({row['cpu_us'] / max(first['cpu_us'], 1e-9):.2f})" for row in others)
            print(f"  {mode:9} {cell:20} {', '.join(steps)}")
