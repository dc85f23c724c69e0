"""`bench store`: a store in a bucket (FLAGSTONE_STORE): latency of acknowledged SETs, requests per second, a month's price."""

import os
import time

import bench_load
import servers
from bench_common import machine, write_json
from bench_load import KEY_HOLE, Load, Uniform, Values, Work, template
from servers import Server, fail

REQUESTS = ("puts", "gets", "lists", "deletes")
BYTES = ("put_bytes", "get_bytes")
# A server that was asked for data makes sure for a minute that it is still the owner.
QUIET_S = 70
MONTH_S = 30 * 24 * 3600
# What a month costs at a steady rate, in dollars by request; S3 Standard takes nothing for DELETEs and traffic in its region.
PRICES = {"puts": 5e-6, "lists": 5e-6, "gets": 0.4e-6, "deletes": 0.0}


def store(options):
    if not os.environ.get("FLAGSTONE_STORE"):
        fail("set FLAGSTONE_STORE=s3://bucket/prefix, and the credentials of the bucket")
    report = {"machine": machine(options), "modes": {}}
    print(f"{'mode':8} {'cell':18} {'ops/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>8} {'PUT/s':>7} {'GET/s':>7} {'LIST/s':>6}"
          f" {'DEL/s':>6} {'KB put/s':>9} {'KB got/s':>9} {'$/month':>8} {'load':>5}", flush=True)
    for mode in options.modes:
        with Server(options.ours, mode, options.workers[0], options.shards or options.workers[0], options.memory_budget,
                    extra=options.server_arguments) as server:
            server.start(120)
            report["modes"][mode] = [{"cell": name} | cell(server, options, name, work, clients, rate, seconds)
                                     for name, work, clients, rate, seconds in cells(options)]
        write_json(options, report)


def cells(options):
    """Name, work, clients, rate and seconds; the empty server first, in the end the one that has data and was at full load."""
    values, keys = Values(options.size), Uniform(options.keys)
    one, many = (bench_load.sets(values, keys, pipeline) for pipeline in (1, options.pipeline))
    read = template("GET", b"key:" + KEY_HOLE)
    reads = Work(values, {"GET": (1, lambda key, _: read % key)}, keys, 1)
    clients = options.clients[0]
    return [("idle, empty", None, 0, None, options.idle), ("1 write/s", one, 1, 1, options.idle),
            ("SET P1 c1", one, 1, None, options.latency), (f"SET P1 c{clients}", one, clients, None, options.latency),
            (f"SET P{options.pipeline} c{clients}", many, clients, None, options.seconds),
            ("settling", None, 0, None, options.seconds), ("1 read/s", reads, 1, 1, options.idle),
            ("idle, with data", None, 0, None, options.idle)]


def cell(server, options, name, work, clients, rate, seconds):
    """One row. What goes on in the background from the cell before is waited for, but for the cell that shows it."""
    if not name.startswith(("SET", "settling")):
        settle(server, options.settle)
    if name.startswith("idle"):
        time.sleep(QUIET_S)
    before, began = counted(server), time.monotonic()
    row = {"operations": 0}
    if work is None:
        time.sleep(seconds)
    else:
        with Load(server, work, clients, 1, rate) as load:
            before, began = counted(server), time.monotonic()
            figures, _, share = load.run(seconds)
        if figures.errors or not figures.operations:
            fail(f"{server.name}: {figures.first_error or 'no reply in time'}\n{server.log_tail()}")
        row |= {"operations": figures.operations, "load": share} | figures.latencies()
    passed = time.monotonic() - began
    row |= {name: number - before[name] for name, number in counted(server).items()}
    row |= {"seconds": passed, "dollars": sum(row[name] * PRICES[name] for name in REQUESTS) / passed * MONTH_S,
            "machine_load": os.getloadavg()[0]}
    print_row(server.mode, name, row)
    return row


def settle(server, timeout):
    """Waits until background work is done: what is put in ten seconds is a few bytes, and no file."""
    servers.settle([server], timeout)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        before = counted(server)
        time.sleep(10)
        if counted(server)["put_bytes"] - before["put_bytes"] < 1 << 16:
            return


def counted(server):
    info = server.info("flagstone")
    return {name: info[f"store_{name}"] for name in (*REQUESTS, *BYTES)}


def print_row(mode, name, row):
    p50, p99, most = (f"{row[key]:.1f}" if key in row else "-" for key in ("p50_ms", "p99_ms", "max_ms"))
    rates = {key: row[key] / row["seconds"] for key in ("operations", *REQUESTS, *BYTES)}
    print(f"{mode:8} {name:18} {rates['operations']:8.0f} {p50:>7} {p99:>7} {most:>8} {rates['puts']:7.2f} {rates['gets']:7.2f}"
          f" {rates['lists']:6.2f} {rates['deletes']:6.2f} {rates['put_bytes'] / 1000:9.1f} {rates['get_bytes'] / 1000:9.1f}"
          f" {row['dollars']:8.2f} {row['machine_load']:5.1f}", flush=True)
