"""The attackers of `neighbours` that are scripts: some connections run them again and again,
another one kills them each second.
"""

import threading

from neighbours_attacks import attack
from servers import ReplyError, encode

# Connections that run the script at the same time.
RUNNERS = 3
# Seconds between two SCRIPT KILLs.
KILL_EVERY = 1

SCRIPTS = {
    "handler": ("an xpcall whose handler loops", "xpcall(function() while true do end end, function() while true do end end)"),
    "coroutines": (
        "coroutines in coroutines that catch their end",
        "while true do pcall(coroutine.wrap(function() while true do pcall(coroutine.wrap(function() while true do end end)) end end)) end",
    ),
    "pattern": ("a pattern that takes for ever", "return string.find(string.rep('a', 30000), string.rep('a*', 30) .. 'b')"),
    "encoder": ("a loop of cjson.encode of a large table", "local t = {} for i = 1, 20000 do t[i] = {i} end while true do cjson.encode(t) end"),
    "sorting": (
        "table.sort of long strings",
        "local s = string.rep('x', 1000000) local a, b, t = s .. 'a', s .. 'b', {} "
        "for i = 1, 50000 do t[i] = i % 2 == 0 and a or b end table.sort(t)",
    ),
    "joining": ("a loop of concatenations of long strings", "local s = string.rep('x', 1000000) while true do local t = s .. 'y' end"),
    "reading": ("a loop of LRANGE of a large list", "while true do redis.call('LRANGE', 'list', 0, -1) end"),
    "reply": ("a small table that stands for an endless reply", "local t = {} for i = 1, 40 do t = {t, t, t, t} end return t"),
}


def fill(connection, _):
    connection.command("DEL", "list")
    connection.command("RPUSH", "list", *range(20_000))


def runner(target, script):
    while not target.stopped():
        try:
            plain = target.socket()
            plain.settimeout(0.2)
            while not target.stopped():
                plain.sendall(encode(["EVAL", script, 0]))
                answer = b""
                while not answer.endswith(b"\r\n") and not target.stopped():
                    try:
                        answer = plain.recv(1 << 16)
                    except TimeoutError:
                        continue
                    if not answer:
                        raise OSError("closed")
        except OSError:
            target.stop.wait(0.05)


def scripted(name, about, script):
    @attack(name, about, fill)
    def run(target):
        runners = [threading.Thread(target=runner, args=(target, script)) for _ in range(RUNNERS)]
        for thread in runners:
            thread.start()
        while not target.stop.wait(KILL_EVERY):
            try:
                with target.connect() as connection:
                    connection.command("SCRIPT", "KILL")
            except (OSError, ReplyError):  # It may have ended by itself, and a server that is held up does not answer.
                continue
        for thread in runners:
            thread.join()


for name, (about, script) in SCRIPTS.items():
    scripted(name, about, script)
