"""`bench restart`: the time after SIGTERM and after kill -9 until a server answers, and until it is
as fast as before.
"""

import statistics
import time

import bench_load
import servers
from bench_cold import FILL_PIPELINE, fill
from bench_common import byte_count, drop_caches, machine, need_disk, targets, write_json
from bench_data import Strings
from bench_load import KEY_BYTES, Load, Uniform, Values, Zipfian
from servers import Connection, ReplyError, fail

BACK_SHARE = 0.9
# Load goes on for so many seconds after the first that is as fast as before.
SHOWN_AFTER = 3
FULL_SHARE, FULL_WATCHED_S, FULL_LIMIT_S = 0.9, 10, 60
START_LIMIT_S = 1800


def restart(options):
    live = int(options.gb * (1 << 30))
    keys = live // (KEY_BYTES + options.size)
    if options.hot > keys:
        fail(f"--hot is more than the {keys} keys")
    need_disk(live)
    report = {"machine": machine(options), "keys": keys, "size": options.size, "servers": {}}
    values = Values(options.size)
    choices = {f"uniform of {options.hot}": Uniform(options.hot, keys // options.hot), "zipfian": Zipfian(keys)}
    for server in targets(options, options.modes[0]):
        with server:
            server.start(600)
            filled = fill(server, Strings(keys, values), FILL_PIPELINE, options)
            works = {name: bench_load.gets(values, choice, options.pipeline) for name, choice in choices.items()}
            before = {name: speed(server, name, work, options) for name, work in works.items()}
            rounds = []
            for stop in (terminate, kill):
                for name, work in works.items():
                    rounds.append(one_round(server, stop, name, work, before[name], options))
                    report["servers"][server.name] = {"fill": filled, "before_rps": before, "rounds": rounds}
                    write_json(options, report)


def speed(server, name, work, options):
    """Operations per second of a load once it has warmed up."""
    rates = []
    with Load(server, work, options.clients[0], options.processes) as load:
        load.run(2 * options.seconds + 1, window=1, on_window=lambda _, figures: rates.append(figures.operations))
    rate = statistics.median(rates[-options.seconds :])
    print(f"before {server.name}: GET {name}: {rate / 1000:.1f} k/s after {options.seconds} s", flush=True)
    return rate


def terminate(server, work, options):
    servers.settle([server], options.settle)
    began = time.monotonic()
    code = server.terminate(600)
    if code != 0:
        fail(f"{server.name} ended with {code} after SIGTERM\n{server.log_tail()}")
    return {"stop": "SIGTERM", "stop_s": time.monotonic() - began, "backlog_bytes": 0}


def kill(server, work, options):
    """kill -9 when the journal holds as much as it ever does that is not in the engine yet."""
    backlog = fill_journal(server, work, options)
    server.kill()
    return {"stop": "kill -9", "stop_s": 0.0, "backlog_bytes": backlog}


def fill_journal(server, work, options):
    """SETs until the journal is nearly as full as its limit, or else as it has been within some seconds, or for long
    enough; returns the bytes that a start has to read."""
    limit, most, last = FULL_SHARE * journal_limit(server), 0, 0

    def full(number, _):
        nonlocal most, last
        last = backlog_bytes(server)
        most = max(most, last)
        return last >= limit or (number * 0.1 >= FULL_WATCHED_S and last >= FULL_SHARE * most)

    sets = bench_load.sets(work.values, work.keys, work.pipeline)
    with Load(server, sets, options.clients[0], options.processes) as load:
        seconds = FULL_WATCHED_S if server.reference else FULL_LIMIT_S
        figures, _, _ = load.run(seconds, window=0.1, on_window=None if server.reference else full)
    if figures.errors:
        fail(f"{server.name} answers {figures.first_error} to SET\n{server.log_tail()}")
    return last


def journal_limit(server):
    if server.reference:
        return 0
    return byte_count(server.command("CONFIG", "GET", "journal-max-size")[1].decode())


def backlog_bytes(server):
    return server.info("flagstone").get("journal_backlog_bytes", 0)


def one_round(server, stop, name, work, before, options):
    result = {"load": name} | stop(server, work, options)
    with Load(server, work, options.clients[0], options.processes) as load:
        dropped = drop_caches() if options.drop_caches else None
        began = time.monotonic()
        server.launch()
        pong, first = first_answers(server, began)
        load_began, rates = time.monotonic() - began, []

        def window(_, figures):
            rates.append(figures.operations)
            back = [place for place, rate in enumerate(rates) if rate >= BACK_SHARE * before]
            return bool(back) and len(rates) > back[0] + SHOWN_AFTER

        load.run(options.limit, window=1, on_window=window)
    back = next((load_began + place + 1 for place, rate in enumerate(rates) if rate >= BACK_SHARE * before), None)
    result |= {"dropped": dropped, "pong_s": pong, "first_get_s": first, "back_s": back, "rates": rates, "before_rps": before,
               "rss_bytes": server.rss_bytes(), "peak_rss_bytes": server.peak_rss_bytes()}
    print_round(server, result, options)
    return result


def first_answers(server, began):
    """Seconds until PING and until GET of a key were answered."""
    pong = None
    while time.monotonic() - began < START_LIMIT_S:
        if server.process.poll() is not None:
            fail(f"{server.name} ended with {server.process.returncode}\n{server.log_tail()}")
        try:
            with Connection(server.port, START_LIMIT_S) as connection:
                while True:
                    if pong is None and connection.command("PING") == b"PONG":
                        pong = time.monotonic() - began
                    if pong is not None:
                        value = connection.command("GET", f"key:{0:012}")
                        if isinstance(value, bytes):
                            return pong, time.monotonic() - began
                        if not isinstance(value, ReplyError):
                            fail(f"{server.name} has lost a key")
                    time.sleep(0.001)
        except OSError:
            time.sleep(0.001)
    return fail(f"{server.name} does not answer within {START_LIMIT_S} s\n{server.log_tail()}")


def print_round(server, row, options):
    back = f"after {row['back_s']:.1f} s" if row["back_s"] is not None else f"not within {options.limit} s"
    dropped = {None: "", True: ", page cache emptied", False: ", page cache NOT emptied: not permitted"}[row["dropped"]]
    backlog = f", backlog of the journal {row['backlog_bytes'] >> 20} MB" if row["stop"] != "SIGTERM" else ""
    print(f"restart {server.name} after {row['stop']} ({row['stop_s']:.2f} s{backlog}{dropped}): PONG {row['pong_s'] * 1000:.0f} ms,"
          f" GET {row['first_get_s'] * 1000:.0f} ms, back at 90 % of GET {row['load']} {back};"
          f" RSS {row['rss_bytes'] >> 20} MB, peak {row['peak_rss_bytes'] >> 20} MB\n  k/s by second: "
          + " ".join(f"{rate / 1000:.0f}" for rate in row["rates"]) + f"  (before: {row['before_rps'] / 1000:.0f})", flush=True)
