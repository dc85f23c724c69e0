"""`bench soak`: a long mix of commands, by windows."""

import statistics
import sys
import time

from bench_cold import FILL_PIPELINE, fill
from bench_common import Usage, byte_count, machine, need_disk, targets, write_json
from bench_data import Strings
from bench_load import KEY_BYTES, KEY_HOLE, VERSION_HOLE, Load, Uniform, Values, Work, Zipfian, template
from servers import fail

FACTOR = 4
FIELDS, MEMBERS, ELEMENTS, EXPIRE_S = 10, 20, 99, 60
COMPARED = ("rps", "p50_ms", "p99_ms", "p99.9_ms", "max_ms", "rss_bytes", "disk_bytes", "journal_bytes", "cpu_us")


def mix(values, keys):
    """The commands by weight. Lists, hashes and sorted sets have bounds: LTRIM, few fields, few members."""
    counters, others = max(1, keys // 10), max(1, keys // 20)
    get, delete = template("GET", b"key:" + KEY_HOLE), template("DEL", b"key:" + KEY_HOLE)
    expire, incr = template("EXPIRE", b"key:" + KEY_HOLE, EXPIRE_S), template("INCR", b"counter:" + KEY_HOLE)
    push, pop = template("LPUSH", b"list:" + KEY_HOLE, VERSION_HOLE), template("LPOP", b"list:" + KEY_HOLE)
    trim = template("LTRIM", b"list:" + KEY_HOLE, 0, ELEMENTS)
    hset = template("HSET", b"hash:" + KEY_HOLE, VERSION_HOLE, VERSION_HOLE)
    zadd = template("ZADD", b"zset:" + KEY_HOLE, VERSION_HOLE, VERSION_HOLE)
    return {
        "GET": (47, lambda key, _: get % key),
        "SET": (20, values.set),
        "INCR": (10, lambda key, _: incr % (key % counters)),
        "LPUSH": (5, lambda key, version: push % (key % others, version)),
        "LPOP": (5, lambda key, _: pop % (key % others)),
        "HSET": (5, lambda key, version: hset % (key % others, version % FIELDS, version)),
        "ZADD": (5, lambda key, version: zadd % (key % others, version, version % MEMBERS)),
        "LTRIM": (1, lambda key, _: trim % (key % others)),
        "EXPIRE": (1, lambda key, _: expire % key),
        "DEL": (1, lambda key, _: delete % key),
    }


def soak(options):
    keys = options.keys or FACTOR * byte_count(options.memory_budget) // (KEY_BYTES + options.size)
    need_disk(keys * (KEY_BYTES + options.size))
    window = options.window or min(60, (options.seconds or 100) / 10)
    report = {"machine": machine(options), "keys": keys, "size": options.size, "window_s": window, "servers": {}}
    values, failed = Values(options.size), False
    choice = {"uniform": Uniform, "zipfian": Zipfian}[options.distribution](keys)
    for server in targets(options, options.modes[0]):
        with server:
            server.start(600)
            filled = fill(server, Strings(keys, values), FILL_PIPELINE, options)
            work = Work(values, mix(values, keys), choice, options.pipeline)
            result = soak_on(server, work, window, options)
            report["servers"][server.name] = {"fill": filled} | result
            failed = failed or result["errors"] > 0
            write_json(options, report)
    if failed:
        sys.exit(1)


class Windows:
    """Takes the server's figures at the end of each window, and prints them."""

    def __init__(self, server, window):
        self.server, self.window, self.rows = server, window, []
        self.usage, self.began = Usage(server), time.monotonic()
        server.reset_peak_rss()
        print(f"\n{'seconds':>8} {'k ops/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'p99.9':>7} {'max ms':>8} {'RSS MB':>6} {'peak':>6}"
              f" {'disk MB':>7} {'journal':>7} {'µs/op':>6} {'CPUs':>5} {'written MB/s':>12}", flush=True)

    def row(self, number, figures):
        server, used = self.server, self.usage.since()
        seconds, self.began = time.monotonic() - self.began, time.monotonic()
        row = {"end_s": (number + 1) * self.window, "operations": figures.operations, "rps": figures.operations / self.window,
               "cpus": used["cpu_s"] / seconds, "cpu_us": used["cpu_s"] / max(1, figures.operations) * 1e6,
               "rss_bytes": server.rss_bytes(), "peak_rss_bytes": server.peak_rss_bytes(), "disk_bytes": server.disk_bytes(),
               "journal_bytes": journal_bytes(server), "written_bytes_per_s": used["write_bytes"] / seconds}
        row |= figures.latencies() | {"errors": figures.errors, "nils": figures.nils}
        self.rows.append(row)
        print(f"{row['end_s']:8.0f} {row['rps'] / 1000:8.1f} {row['p50_ms']:7.2f} {row['p99_ms']:7.2f} {row['p99.9_ms']:7.2f}"
              f" {row['max_ms']:8.1f} {row['rss_bytes'] >> 20:6} {row['peak_rss_bytes'] >> 20:6} {row['disk_bytes'] >> 20:7}"
              f" {row['journal_bytes'] >> 20:7} {row['cpu_us']:6.2f} {row['cpus']:5.2f}"
              f" {row['written_bytes_per_s'] / (1 << 20):12.1f}{f' {figures.errors} errors' if figures.errors else ''}", flush=True)
        server.reset_peak_rss()
        self.usage = Usage(server)


def journal_bytes(server):
    return 0 if server.reference else server.info("flagstone").get("journal_bytes", 0)


def soak_on(server, work, window, options):
    with Load(server, work, options.clients[0], options.processes, options.rate) as load:
        windows = Windows(server, window)
        figures, seconds, share = load.run(options.seconds, options.operations, window, windows.row)
    if server.process.poll() is not None:
        fail(f"{server.name} ended\n{server.log_tail()}")
    rows, operations = windows.rows, figures.operations
    peak = max([server.peak_rss_bytes(), *(row["peak_rss_bytes"] for row in rows)])
    result = {"operations": operations, "seconds": seconds, "rps": operations / seconds, "load": share, "errors": figures.errors,
              "first_error": figures.first_error, "nils": figures.nils, "peak_rss_bytes": peak, "windows": rows}
    result |= figures.latencies()
    print(f"soak {server.name}: {operations} operations in {seconds:.1f} s, {operations / seconds / 1000:.1f} k/s (load {share:.2f});"
          f" ms p50 {result['p50_ms']:.2f} p99 {result['p99_ms']:.2f} p99.9 {result['p99.9_ms']:.2f} max {result['max_ms']:.1f};"
          f" RSS max {peak >> 20} MB, budget {options.memory_budget} ({peak / byte_count(options.memory_budget):.2f} x);"
          f" {figures.errors} errors{f', the first: {figures.first_error}' if figures.errors else ''}", flush=True)
    result["halves"] = halves(rows)
    return result


def halves(rows):
    """Medians over the windows of the first and of the second half."""
    if len(rows) < 2:
        return {}
    first, second = rows[: len(rows) // 2], rows[len(rows) - len(rows) // 2 :]
    found = {name: [statistics.median(row[name] for row in half) for half in (first, second)] for name in COMPARED}
    print("medians, first half -> second half: " + ", ".join(
        f"{name} {shown(name, before)} -> {shown(name, after)} ({after / before if before else 0:.2f})"
        for name, (before, after) in found.items()), flush=True)
    return found


def shown(name, number):
    return f"{number / (1 << 20):.0f} MB" if name.endswith("bytes") else f"{number:.0f}" if name == "rps" else f"{number:.2f}"
