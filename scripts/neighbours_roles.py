"""The attackers of `neighbours` that change libraries of functions while writes are held: by CLIENT PAUSE, by a
FAILOVER, by a stop that waits for a replica, or because the server is a replica for a moment. Each hold is ended soon,
so nobody waits for long; who misses the end of one waits on.
"""

import socket
import threading
import time

from neighbours_attacks import attack
from servers import HOST, ReplyError

# Connections that change libraries.
CHANGERS = 3
# Seconds for which writes are held, and between two holds.
HELD, BETWEEN = 0.2, 0.05
# How often the end of a hold is asked for, if it seems not to have begun.
TRIES = 20
# The address of a replica that is not there: only the connection is.
REPLICA = "10.0.0.1", "1"
LIBRARY = "#!lua name={0}\nredis.register_function('{0}', function(keys, args) return redis.call('SET', keys[1], args[1]) end)"


def change_libraries(target, number):
    """Loads, dumps, restores, calls, deletes and flushes libraries."""
    name = f"library{number}"
    while not target.stopped():
        try:
            with target.connect() as connection:
                while not target.stopped():
                    connection.command("FUNCTION", "LOAD", "REPLACE", LIBRARY.format(name))
                    dumped = connection.command("FUNCTION", "DUMP")
                    connection.command("FCALL", name, 1, name, "value")
                    connection.command("FUNCTION", "DELETE", name)
                    if isinstance(dumped, bytes):
                        connection.command("FUNCTION", "RESTORE", dumped, "REPLACE")
                    if number == 0:
                        connection.command("FUNCTION", "FLUSH")
        except OSError:
            target.stop.wait(BETWEEN)


def drain(plain):
    try:
        while plain.recv(1 << 16):
            pass
    except OSError:
        pass


def silent_replica(target):
    """A connection that gets the stream and never has any of it."""
    plain = target.socket()
    plain.settimeout(None)
    plain.sendall(f"REPLCONF listening-port {REPLICA[1]} ip-address {REPLICA[0]}\r\nPSYNC ? -1\r\n".encode())
    threading.Thread(target=drain, args=(plain,), daemon=True).start()
    with target.connect() as connection:
        while b"state=online" not in connection.command("INFO", "replication") and not target.stopped():
            plain.sendall(b"REPLCONF ACK 0\r\n")
            target.stop.wait(BETWEEN)
    return plain


def holds(name, about, begin, end, has_replica=False):
    """Registers an attacker that begins and ends a hold again and again. Who begins gets no reply before its end."""
    def prepare(connection, _):
        connection.command("CONFIG", "SET", "shutdown-timeout", "3600", "repl-timeout", "3600")

    @attack(name, f"libraries of functions are changed beside {about}", prepare, longest=5)
    def run(target):
        changers = [threading.Thread(target=change_libraries, args=(target, number)) for number in range(CHANGERS)]
        for thread in changers:
            thread.start()
        replica = silent_replica(target) if has_replica else None
        with socket.create_server((HOST, 0)) as mute:
            words = [word.format(port=mute.getsockname()[1]) for word in begin]
            while not target.stopped():
                with target.connect() as holder, target.connect() as other:
                    # The replica lacks something at least.
                    other.send(("SET", "behind", "x"))
                    holder.send(words)
                    target.stop.wait(HELD)
                    with target.connect() as ender:
                        for _ in range(TRIES):
                            ended = ender.command(*end)
                            if not isinstance(ended, ReplyError) or "No " not in str(ended):
                                break
                            # It has not begun yet.
                            time.sleep(BETWEEN)
                    if not has_replica:
                        holder.read()
                target.stop.wait(BETWEEN)
        for thread in changers:
            thread.join()
        if replica is not None:
            replica.close()


holds("pauses", "CLIENT PAUSE", ("CLIENT", "PAUSE", "60000", "WRITE"), ("CLIENT", "UNPAUSE"))
holds("failovers", "a FAILOVER that is aborted", ("FAILOVER", "TO", *REPLICA), ("FAILOVER", "ABORT"), has_replica=True)
holds("stops", "a stop that is aborted", ("SHUTDOWN",), ("SHUTDOWN", "ABORT"), has_replica=True)
holds("roles", "REPLICAOF", ("REPLICAOF", HOST, "{port}"), ("REPLICAOF", "NO", "ONE"))
