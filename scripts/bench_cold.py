"""`bench cold`: single commands on a data set many times the memory budget, for several servers side by side."""

import contextlib
import time

import bench_data
import bench_load
import bench_others
import servers
from bench_common import Usage, byte_count, drop_caches, is_ours, machine, need_disk, ours, references, write_json
from bench_load import KEY_BYTES, Load, Once, Uniform, Zipfian
from servers import fail

FACTOR = 10
# Of fills before other modes.
FILL_PIPELINE = 64
CHECKED_KEYS = 1000
# Keys of one EXISTS, and of one write that is repeated, when refused writes are made up for.
REPAIRED = 1000
REPAIRS = 20


def cold(options):
    keys = options.number or FACTOR * byte_count(options.memory_budget) // (KEY_BYTES + options.size)
    report = {"machine": machine(options), "keys": keys, "size": options.size, "servers": {}}
    for data in bench_data.chosen(options, keys):
        for pipeline in options.fill_pipelines[:-1]:
            with servers_for(data, 1, options) as found:
                for server in found:
                    server.start(600)
                    note(report, server, data, fill(server, data, pipeline, options))
                    server.close()
        with servers_for(data, None, options) as found:
            for server in found:
                server.start(600)
                note(report, server, data, fill(server, data, options.fill_pipelines[-1], options))
            cold_cells(found, data, options, lambda server, row: note(report, server, data, row, "cells"))
            for name, rest in disk_at_rest(found, data, options).items():
                report["servers"][name][data.name]["disk_at_rest_bytes"] = rest
            write_json(options, report)


@contextlib.contextmanager
def servers_for(data, together, options):
    """The servers, not started, the others first; `together`: so many of them, or all, hold data at the same time."""
    with contextlib.ExitStack() as stack:
        found = [*references(options, options.modes[0]), *bench_others.others(options), *ours(options, options.modes[0])]
        found = [stack.enter_context(server) for server in found]
        need_disk(data.live_bytes * (together or len(found)))
        yield found


def note(report, server, data, figures, kind="fills"):
    sets = report["servers"].setdefault(server.name, {})
    sets.setdefault(data.name, {"fills": [], "cells": []})[kind].append(figures)


def disk_at_rest(found, data, options):
    """The bytes on disk once replaced files, which stay for a while, are gone too; by server."""
    servers.settle(found, options.settle)
    before = {server.name: server.disk_bytes() for server in found}
    time.sleep(options.disk_wait)
    after = {server.name: server.disk_bytes() for server in found}
    for name, size in after.items():
        print(f"disk {name}: {before[name] >> 20} MB ({before[name] / data.live_bytes:.2f} x) after the cells,"
              f" {size >> 20} MB ({size / data.live_bytes:.2f} x) {options.disk_wait:.0f} s later", flush=True)
    return after


def fill(server, data, pipeline, options):
    """Writes every key once, in no order; makes up for writes that were refused, waits until that is settled, and reads some
    keys again."""
    usage, keys = Usage(server), data.number
    with Load(server, data.fill(Once(keys), pipeline), options.clients[0], options.processes) as load:
        figures, seconds, share = load.run(operations=keys)
    if figures.errors == figures.operations:
        fail(f"{server.name} refuses every write: {figures.first_error}\n{server.log_tail()}")
    if figures.errors:
        repair(server, data, options)
    began = time.monotonic()
    busy = servers.settle([server], options.settle)
    settled_s, used = time.monotonic() - began, usage.since()
    check(server, data)
    live = data.live_bytes
    result = {"keys": keys, "pipeline": pipeline, "refused": figures.errors, "first_error": figures.first_error,
              "seconds": seconds, "rps": keys / seconds, "load": share, "settle_s": settled_s, "settled": not busy,
              "live_bytes": live, "disk_bytes": server.disk_bytes(), "cpu_us": used["cpu_s"] / keys * 1e6,
              "written_x": used["write_bytes"] / live, "rss_bytes": server.rss_bytes(),
              "peak_rss_bytes": server.peak_rss_bytes()} | figures.latencies()
    refused = f", {figures.errors} writes REFUSED ({figures.first_error})" if figures.errors else ""
    print(f"fill P{pipeline} {server.name}: {keys} {data.name}, live {live >> 20} MB, budget {options.memory_budget};"
          f" {keys / seconds / 1000:.1f} k/s (load {share:.2f}){refused}, p50 {result['p50_ms']:.1f}, p99 {result['p99_ms']:.1f},"
          f" p99.9 {result['p99.9_ms']:.1f}, max {figures.max_s * 1000:.0f} ms,"
          f" {'settled' if not busy else 'NOT settled'} after {settled_s:.0f} s; {result['cpu_us']:.1f} µs/op,"
          f" written {result['written_x']:.2f} x, disk {result['disk_bytes'] >> 20} MB ({result['disk_bytes'] / live:.2f} x),"
          f" RSS {result['rss_bytes'] >> 20} MB, peak {result['peak_rss_bytes'] >> 20} MB", flush=True)
    return result


def repair(server, data, options):
    """Writes the keys again that are missing, slowly."""
    work = data.fill(None, 1)
    make = next(iter(work.kinds.values()))[1]
    with server.connect(600) as connection:
        for _ in range(REPAIRS):
            servers.settle([server], options.settle)
            missing = []
            for first in range(0, data.number, REPAIRED):
                keys = range(first, min(first + REPAIRED, data.number))
                if connection.command("EXISTS", *(f"key:{key:012}" for key in keys)) < len(keys):
                    there = connection.pipeline([["EXISTS", f"key:{key:012}"] for key in keys])
                    missing += [key for key, found in zip(keys, there) if not found]
            if not missing:
                return
            for first in range(0, len(missing), REPAIRED // 10):
                keys = missing[first : first + REPAIRED // 10]
                connection.socket.sendall(b"".join(make(key, 0) for key in keys))
                for _ in keys:
                    connection.read()
    fail(f"{server.name} goes on refusing writes")


def check(server, data):
    """Some keys have a right value, and one that was never set has none."""
    keys = data.number
    if is_ours(server.name) and server.command("DBSIZE") != keys:
        fail(f"{server.name} has {server.command('DBSIZE')} keys of {keys}")
    chosen = [place * keys // CHECKED_KEYS for place in range(CHECKED_KEYS)]
    with server.connect(120) as connection:
        found = connection.pipeline([data.question(key) for key in chosen])
        if connection.command("EXISTS", f"key:{keys:012}") != 0:
            fail(f"{server.name} has a key that was never set")
    for key, reply in zip(chosen, found):
        if not data.is_right(key, reply):
            fail(f"{server.name} answers {reply!r:.80} to {' '.join(data.question(key))}")


def cold_cells(found, data, options, noted):
    """Each cell on every server in turn; `noted` gets each row."""
    print(f"\n{'cell':12} {'server':10} {'k ops/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'p99.9':>7} {'max ms':>8} {'refused':>7}"
          f" {'µs/op':>7} {'after':>7} {'worker':>7} {'load':>5} {'reads/op':>8} {'read x':>7} {'device x':>8} {'journal B':>9}"
          f" {'written B':>9} {'disk x':>6} {'RSS MB':>6} {'peak':>5}", flush=True)
    dropped = set()
    for turn, (command, pipeline) in enumerate((c, p) for c in data.commands if c in options.cells for p in options.pipelines):
        for place in range(len(found)):
            server = found[(turn + place) % len(found)]
            servers.settle([other for other in found if other is not server], options.settle)
            row = {"cell": f"{command} P{pipeline}", "server": server.name} | measure(server, data, command, pipeline, options)
            print_row(row)
            noted(server, row)
            dropped.add(row["dropped"])
    if dropped - {None}:
        print("page cache NOT emptied: not permitted" if False in dropped else "page cache emptied as asked", flush=True)


def measure(server, data, command, pipeline, options):
    """One cell; the writes and the CPU of what settles after it are counted apart and together."""
    choice = Zipfian(data.number) if command.endswith("-ZIPF") else Uniform(data.number)
    with Load(server, data.work(command, choice, pipeline), options.clients[0], options.processes) as load:
        busy = servers.settle([server], options.settle)
        if command == "GET-AFTER":
            overwrite(server, data, pipeline, options)
        dropping = options.drop_caches or options.drop_every
        dropped = drop_caches() if dropping else None
        server.reset_peak_rss()
        usage, journal = Usage(server), journaled(server)
        again = options.drop_every and (lambda *_: drop_caches() and None)
        figures, seconds, share = load.run(options.seconds, window=options.drop_every, on_window=again or None)
        used, journal = usage.since(), journaled(server) - journal
    operations, sent, returned = figures.operations - figures.errors, data.sent(command), data.returned(command)
    if operations <= 0 or figures.errors and not sent:
        fail(f"{server.name}: {figures.first_error or 'no reply in time'}\n{server.log_tail()}")
    rss, peak = server.rss_bytes(), server.peak_rss_bytes()
    settled = used_when_settled(server, usage, options) if sent else used
    per_op = {f"{name}_us": took / operations * 1e6 for name, took in
              (("cpu", used["cpu_s"]), ("worker", used["worker_s"]), ("settled_cpu", settled["cpu_s"]))}
    return per_op | {
        "rps": operations / seconds, "operations": operations, "refused": figures.errors, "load": share, "busy": bool(busy),
        "dropped": dropped, "reads_per_op": used["syscr"] / operations, "read_bytes_per_op": used["rchar"] / operations,
        "device_bytes_per_op": used["read_bytes"] / operations,
        "read_x": used["rchar"] / operations / returned if returned else None,
        "device_x": used["read_bytes"] / operations / returned if returned else None,
        "journal_bytes_per_op": journal / operations if is_ours(server.name) else None,
        "written_bytes_per_op": settled["write_bytes"] / operations, "disk_x": server.disk_bytes() / data.live_bytes,
        "written_x": settled["write_bytes"] / operations / sent if sent else None,
        "rss_bytes": rss, "peak_rss_bytes": peak} | figures.latencies()


def overwrite(server, data, pipeline, options):
    """SETs any keys for as long as a cell, so that their background work runs in the next one."""
    with Load(server, data.work("SET", Uniform(data.number), pipeline), options.clients[0], options.processes) as load:
        load.run(options.seconds)


def journaled(server):
    """Bytes ever appended to the journal; 0 for other servers."""
    return server.info("flagstone").get("journal_appended_bytes", 0) if is_ours(server.name) else 0


def used_when_settled(server, usage, options):
    servers.settle([server], options.settle)
    return usage.since()


def print_row(row):
    def number(name, form):
        return form.format(row[name]) if row[name] is not None else "-".rjust(len(form.format(0)))

    print(f"{row['cell']:12} {row['server']:10} {row['rps'] / 1000:8.1f} {row['p50_ms']:7.2f} {row['p99_ms']:7.2f}"
          f" {row['p99.9_ms']:7.2f} {row['max_ms']:8.1f} {row['refused']:7} {row['cpu_us']:7.1f} {row['settled_cpu_us']:7.1f}"
          f" {row['worker_us']:7.1f} {row['load']:5.2f} {row['reads_per_op']:8.2f} {number('read_x', '{:7.2f}')}"
          f" {number('device_x', '{:8.2f}')} {number('journal_bytes_per_op', '{:9.0f}')} {row['written_bytes_per_op']:9.0f}"
          f" {row['disk_x']:6.2f} {row['rss_bytes'] >> 20:6} {row['peak_rss_bytes'] >> 20:5}{' *' if row['busy'] else ''}", flush=True)
