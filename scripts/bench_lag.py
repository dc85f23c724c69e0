"""`bench lag`: how far a replica is behind its primary under load, and what it costs."""

import statistics
import threading
import time

from bench_common import load, machine, write_json
from servers import Server, fail

# Slowest look at the replica, and time between two marks, in seconds.
LOOK, MARK = 0.0005, 0.005
PAIRS = (("ours", "ours"), ("redis", "redis"), ("redis", "ours"), ("ours", "redis"))


def lag(options):
    """Each pair of a primary and a replica, with the loads of --cells: a row for each."""
    report = {"machine": machine(options), "pairs": []}
    print(f"{'primary':8} {'replica':8} {'load':5} {'P':>3} {'k ops/s':>8} {'alone':>6} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>8}"
          f" {'caught up s':>11} {'primary µs':>10} {'replica µs':>10}")
    for primary, replica in PAIRS:
        with server(options, primary) as source, server(options, replica) as copy:
            source.start()
            copy.start()
            for command in options.cells:
                for pipeline in options.pipelines:
                    alone = throughput(source, options, command, pipeline)
                    follow(source, copy)
                    row = behind(source, copy, options, command, pipeline)
                    copy.command("REPLICAOF", "NO", "ONE")
                    row |= {"primary": primary, "replica": replica, "command": command, "pipeline": pipeline}
                    report["pairs"].append(row | {"alone": alone})
                    print(f"{primary:8} {replica:8} {command:5} {pipeline:3} {row['per_s'] / 1000:8.1f} {row['per_s'] / alone:6.2f}"
                          f" {row['p50']:7.2f} {row['p99']:7.2f} {row['max']:8.1f} {row['caught_up']:11.3f}"
                          f" {row['primary_us']:10.2f} {row['replica_us']:10.2f}", flush=True)
    write_json(options, report)


def server(options, kind):
    mode = options.modes[0]
    if kind == "redis":
        return Server(options.redis[0], mode, name=kind, extra=["--repl-diskless-sync-delay", "0"])
    return Server(options.ours, mode, options.workers[0], options.shards, options.memory_budget, options.server_arguments, kind)


def follow(source, copy):
    """Makes it a replica, and waits until it has the data set."""
    copy.command("REPLICAOF", "127.0.0.1", source.port)
    deadline = time.monotonic() + 120
    while b"master_link_status:up" not in copy.command("INFO", "replication"):
        if time.monotonic() > deadline:
            fail(f"{copy.name} does not follow {source.name}:\n{copy.log_tail()}")
        time.sleep(0.1)


def arguments(options, command, pipeline):
    return ["-t", command.lower(), "-P", pipeline, "-c", options.clients[0], "-d", options.size, "-r", options.keys, "-q",
            "-n", options.operations if pipeline > 1 else options.operations // 8]


def throughput(server, options, command, pipeline):
    chosen = arguments(options, command, pipeline)
    began = time.monotonic()
    load(server, options, *chosen)
    return chosen[-1] / (time.monotonic() - began)


def behind(source, copy, options, command, pipeline):
    """Runs the load, while one client sets marks on the primary and another looks for them on the replica."""
    seen, ending = [], threading.Event()
    marks = threading.Thread(target=set_marks, args=(source, ending))
    looks = threading.Thread(target=look, args=(copy, seen, ending))
    # The readers of marks begin first: they see the whole load.
    marks.start()
    looks.start()
    cpu = source.cpu_seconds(), copy.cpu_seconds()
    chosen = arguments(options, command, pipeline)
    began = time.monotonic()
    load(source, options, *chosen)
    seconds = time.monotonic() - began
    ended = time.monotonic()
    ending.set()
    marks.join()
    source.command("SET", "mark", "end")
    while copy.command("GET", "mark") != b"end":
        if time.monotonic() > ended + 60:
            fail(f"{copy.name} has not caught up with {source.name} a minute after the load")
        time.sleep(LOOK)
    caught_up = time.monotonic() - ended
    looks.join()
    if not seen:
        fail(f"{copy.name} showed no mark")
    spent = source.cpu_seconds() - cpu[0], copy.cpu_seconds() - cpu[1]
    ms = sorted(1000 * late for late in seen)
    return {"per_s": chosen[-1] / seconds, "p50": statistics.median(ms), "p99": ms[len(ms) * 99 // 100], "max": ms[-1],
            "marks": len(ms), "caught_up": caught_up, "primary_us": spent[0] / chosen[-1] * 1e6,
            "replica_us": spent[1] / chosen[-1] * 1e6}


def set_marks(source, ending):
    with source.connect(120) as connection:
        while not ending.is_set():
            connection.command("SET", "mark", repr(time.monotonic()))
            time.sleep(MARK)


def look(copy, seen, ending):
    """Notes how old each mark is when it is first there: as it is set before it is sent, the lag is at most that."""
    last = None
    with copy.connect(120) as connection:
        while not ending.is_set():
            mark = connection.command("GET", "mark")
            if isinstance(mark, bytes) and mark not in (last, b"end"):
                if last is not None:
                    seen.append(time.monotonic() - float(mark))
                last = mark
            time.sleep(LOOK)
