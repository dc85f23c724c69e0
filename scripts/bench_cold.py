"""`bench cold`: single commands on a data set many times the memory budget."""

import time

import bench_load
import servers
from bench_common import Usage, byte_count, drop_caches, machine, need_disk, targets, write_json
from bench_load import KEY_BYTES, Load, Once, Uniform, Values, Zipfian
from servers import fail

FACTOR = 10
FILL_PIPELINE = 64
CHECKED_KEYS = 1000


def cold(options):
    size = options.size
    keys = options.number or FACTOR * byte_count(options.memory_budget) // (KEY_BYTES + size)
    need_disk(keys * (KEY_BYTES + size))
    report = {"machine": machine(options), "keys": keys, "size": size, "servers": {}}
    values = Values(size)
    for server in targets(options, options.modes[0]):
        with server:
            server.start(600)
            filled = fill(server, values, keys, options)
            cells = cold_cells(server, values, keys, options)
            rest = disk_at_rest(server, filled["live_bytes"], options)
            report["servers"][server.name] = {"fill": filled, "cells": cells, "disk_at_rest_bytes": rest}
            write_json(options, report)


def disk_at_rest(server, live, options):
    """What is on disk when replaced files are gone too, which stay for a while."""
    servers.settle([server], options.settle)
    before = server.disk_bytes()
    time.sleep(options.disk_wait)
    after = server.disk_bytes()
    print(f"disk {server.name}: {before >> 20} MB ({before / live:.2f} x) after the cells,"
          f" {after >> 20} MB ({after / live:.2f} x) {options.disk_wait:.0f} s later", flush=True)
    return after


def fill(server, values, keys, options):
    """SETs every key once, in no order; waits until that is settled, and reads some keys again."""
    usage = Usage(server)
    with Load(server, bench_load.sets(values, Once(keys), FILL_PIPELINE), options.clients[0], options.processes) as load:
        figures, seconds, share = load.run(operations=keys)
    if figures.errors:
        fail(f"{server.name} answers {figures.first_error} to SET\n{server.log_tail()}")
    began = time.monotonic()
    busy = servers.settle([server], options.settle)
    settled_s, used = time.monotonic() - began, usage.since()
    if server.command("DBSIZE") != keys:
        fail(f"{server.name} has {server.command('DBSIZE')} keys of {keys}")
    check(server, values, keys)
    live = keys * (KEY_BYTES + values.size)
    result = {"keys": keys, "seconds": seconds, "rps": keys / seconds, "load": share, "settle_s": settled_s, "settled": not busy,
              "live_bytes": live, "disk_bytes": server.disk_bytes(), "cpu_us": used["cpu_s"] / keys * 1e6,
              "written_x": used["write_bytes"] / live, "rss_bytes": server.rss_bytes(),
              "peak_rss_bytes": server.peak_rss_bytes()} | figures.latencies()
    print(f"fill {server.name}: {keys} keys of {values.size} bytes, live {live >> 20} MB, budget {options.memory_budget};"
          f" {keys / seconds / 1000:.0f} k/s (load {share:.2f}), max {figures.max_s * 1000:.0f} ms,"
          f" {'settled' if not busy else 'NOT settled'} after {settled_s:.0f} s; {result['cpu_us']:.1f} µs/op,"
          f" written {result['written_x']:.2f} x, disk {result['disk_bytes'] >> 20} MB ({result['disk_bytes'] / live:.2f} x),"
          f" RSS {result['rss_bytes'] >> 20} MB, peak {result['peak_rss_bytes'] >> 20} MB", flush=True)
    return result


def check(server, values, keys):
    """Some keys have a right value, and one that was never set has none."""
    chosen = [place * keys // CHECKED_KEYS for place in range(CHECKED_KEYS)]
    with server.connect(120) as connection:
        found = connection.pipeline([["GET", f"key:{key:012}"] for key in chosen])
        if connection.command("GET", f"key:{keys:012}") is not None:
            fail(f"{server.name} has a key that was never set")
    for key, value in zip(chosen, found):
        if not isinstance(value, bytes) or not values.right(key, value):
            fail(f"{server.name} answers {value!r:.80} to GET of key {key}")


def cold_cells(server, values, keys, options):
    print(f"\n{'cell':20} {'k ops/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'p99.9':>7} {'max ms':>8} {'µs/op':>7} {'worker':>7} {'load':>5}"
          f" {'reads/op':>8} {'read x':>7} {'device x':>8} {'written x':>9} {'disk x':>6} {'RSS MB':>6} {'peak':>5}", flush=True)
    rows = []
    for pipeline in options.pipelines:
        for command, make in (("GET", bench_load.gets), ("SET", bench_load.sets)):
            for name, choice in (("uniform", Uniform(keys)), ("zipfian", Zipfian(keys))):
                row = measure(server, make(values, choice, pipeline), command, options)
                rows.append({"cell": f"{command} {name} P{pipeline}", "server": server.name} | row)
                print_row(rows[-1])
    dropped = {row["dropped"] for row in rows} - {None}
    if dropped:
        print("page cache emptied as asked" if dropped == {True} else "page cache NOT emptied: not permitted", flush=True)
    return rows


def measure(server, work, command, options):
    """One cell; the writes and the CPU of what settles after it are counted apart and together."""
    with Load(server, work, options.clients[0], options.processes) as load:
        busy = servers.settle([server], options.settle)
        dropping = options.drop_caches or options.drop_every
        dropped = drop_caches() if dropping else None
        server.reset_peak_rss()
        usage = Usage(server)
        again = options.drop_every and (lambda *_: drop_caches() and None)
        figures, seconds, share = load.run(options.seconds, window=options.drop_every, on_window=again or None)
        used = usage.since()
    if figures.errors or not figures.operations:
        fail(f"{server.name}: {figures.first_error or 'no reply in time'}\n{server.log_tail()}")
    rss, peak = server.rss_bytes(), server.peak_rss_bytes()
    settled = used if command == "GET" else used_when_settled(server, usage, options)
    operations = figures.operations
    live = server.command("DBSIZE") * (KEY_BYTES + work.values.size)
    returned = operations * work.values.size if command == "GET" else 0
    sent = operations * (KEY_BYTES + work.values.size) if command == "SET" else 0
    return {"rps": operations / seconds, "operations": operations, "load": share, "busy": bool(busy), "dropped": dropped,
            "cpu_us": used["cpu_s"] / operations * 1e6, "worker_us": used["worker_s"] / operations * 1e6,
            "settled_cpu_us": settled["cpu_s"] / operations * 1e6, "reads_per_op": used["syscr"] / operations,
            "read_bytes_per_op": used["rchar"] / operations, "device_bytes_per_op": used["read_bytes"] / operations,
            "read_x": used["rchar"] / returned if returned else None,
            "device_x": used["read_bytes"] / returned if returned else None,
            "written_x": settled["write_bytes"] / sent if sent else None, "disk_x": server.disk_bytes() / live,
            "rss_bytes": rss, "peak_rss_bytes": peak} | figures.latencies()


def used_when_settled(server, usage, options):
    servers.settle([server], options.settle)
    return usage.since()


def print_row(row):
    def times(number, width):
        return f"{number:{width}.2f}" if number is not None else "-".rjust(width)

    print(f"{row['cell']:20} {row['rps'] / 1000:8.1f} {row['p50_ms']:7.2f} {row['p99_ms']:7.2f} {row['p99.9_ms']:7.2f}"
          f" {row['max_ms']:8.1f} {row['cpu_us']:7.1f} {row['worker_us']:7.1f} {row['load']:5.2f} {row['reads_per_op']:8.2f}"
          f" {times(row['read_x'], 7)} {times(row['device_x'], 8)} {times(row['written_x'], 9)} {row['disk_x']:6.2f}"
          f" {row['rss_bytes'] >> 20:6} {row['peak_rss_bytes'] >> 20:5}{' *' if row['busy'] else ''}", flush=True)
