"""`bench idle` and `bench puts`: memory of connections, and of many writes."""

import re
import time

from bench_common import is_ours, load, machine, raise_open_files, targets, write_json
from servers import Connection, fail

PUT_KEY_BYTES, PUT_VALUE_BYTES = len("key:000000000000"), 100


def idle(options):
    """RSS growth per connection, after each has sent one PING, for Redis and for ours."""
    needed = raise_open_files(options.number)
    report = {"machine": machine(options), "connections": options.number, "servers": {}}
    for server in targets(options, "everysec"):
        server.extra += ["--maxclients", str(needed)]
        with server:
            server.start().settle(5)
            report["servers"][server.name] = idle_on(server, options.number)
    write_json(options, report)


def idle_on(server, number):
    before = server.rss_bytes()
    connections = []
    began = time.monotonic()
    for _ in range(number):
        connection = Connection(server.port)
        connections.append(connection)
        if connection.command("PING") != b"PONG":
            fail(f"{server.name} does not answer connection {len(connections)}")
    seconds = time.monotonic() - began
    server.settle(10)
    grown = server.rss_bytes() - before
    cpu = server.cpu_seconds()
    time.sleep(2)
    cpu = (server.cpu_seconds() - cpu) / 2
    alive = sum(connection.command("PING") == b"PONG" for connection in connections[:: max(1, number // 100)])
    for connection in connections:
        connection.close()
    print(f"idle {server.name:8} {number} connections in {seconds:.1f} s: {grown / number:.0f} bytes each,"
          f" RSS {(before + grown) >> 20} MB, {cpu * 100:.1f} % CPU while idle, {alive} of them asked again", flush=True)
    return {"bytes_per_connection": grown / number, "rss_bytes": before + grown, "idle_cpu_share": cpu}


def puts(options):
    report = {"machine": machine(options), "number": options.number, "servers": {}}
    for server in targets(options, options.modes[0]):
        if is_ours(server.name) or not options.no_redis:
            with server:
                server.start()
                report["servers"][server.name] = puts_on(server, options)
    write_json(options, report)


def puts_on(server, options):
    # Values of random digits, all different, cannot be compressed to nothing as one repeated value could.
    value = "__rand_int__" * (PUT_VALUE_BYTES // 12) + "v" * (PUT_VALUE_BYTES % 12)
    cpu = server.cpu_seconds()
    output = load(server, options, "-n", options.number, "-r", options.keys or options.number, "-P", options.pipeline,
                  "-c", options.clients[0], "SET", "key:__rand_int__", value)
    cpu = server.cpu_seconds() - cpu
    settled = server.settle(options.settle)
    rss, peak, disk = server.rss_bytes(), server.peak_rss_bytes(), server.disk_bytes()
    keys = server.command("DBSIZE")
    live = keys * (PUT_KEY_BYTES + PUT_VALUE_BYTES)
    put_bytes = options.number * (PUT_KEY_BYTES + PUT_VALUE_BYTES)
    result = percentiles(output) | {
        "cpu_us": cpu / options.number * 1e6, "rss_bytes": rss, "peak_rss_bytes": peak, "disk_bytes": disk,
        "keys": keys, "live_bytes": live, "write_amplification": server.io()["write_bytes"] / put_bytes, "settled": settled,
    }
    print(f"puts {server.name:8} {options.number} SETs, {result['rps'] / 1000:.0f} k/s, {result['cpu_us']:.2f} µs/op;"
          f" ms p50 {result['p50_ms']:.2f} p99 {result['p99_ms']:.2f} p99.9 {result['p99.9_ms']:.2f}"
          f" max {result['max_ms']:.2f}; RSS peak {peak >> 20} MB, after {rss >> 20} MB, budget {options.memory_budget};"
          f" {keys} keys, live {live >> 20} MB, disk {disk >> 20} MB ({disk / max(1, live):.2f} x),"
          f" written {result['write_amplification']:.2f} x{'' if settled else ' (not settled)'}", flush=True)
    return result


def percentiles(output):
    """Throughput and latencies out of redis-benchmark's long output; a percentile is the first bucket reaching it."""
    rps = re.search(r"throughput summary: ([\d.]+)", output)
    section = output.partition("Latency by percentile distribution")[2].partition("Cumulative")[0]
    buckets = [(float(share), float(ms)) for share, ms in re.findall(r"([\d.]+)% <= ([\d.]+) milliseconds", section)]
    if rps is None or not buckets:
        fail(f"redis-benchmark printed no figures: {output[-500:]}")
    result = {"rps": float(rps[1]), "max_ms": buckets[-1][1]}
    for share in (50, 99, 99.9):
        result[f"p{share}_ms"] = next(ms for reached, ms in buckets if reached >= share)
    return result
