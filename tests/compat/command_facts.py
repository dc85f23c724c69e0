#!/usr/bin/env python3
"""Writes tests/data/commands.json: facts on the commands of a reference server.

Usage: command_facts.py HOST PORT COMMANDS_DIR > tests/data/commands.json

HOST and PORT are those of a running reference server, whose COMMAND reply is read;
COMMANDS_DIR is the directory of its command descriptions, for what COMMAND does not tell.
"""

import glob
import json
import socket
import sys


def read(stream):
    line = stream.readline()
    kind, text = line[:1], line[1:-2]
    if kind == b"$":
        data = stream.read(int(text) + 2)[:-2]
        return data.decode()
    if kind in b"*~%":
        count = int(text) * (2 if kind == b"%" else 1)
        items = [read(stream) for _ in range(count)]
        return dict(zip(items[::2], items[1::2])) if kind == b"%" else items
    if kind == b":":
        return int(text)
    return text.decode()


def key_spec(spec):
    begin, find = spec["begin_search"], spec["find_keys"]
    return {
        "flags": spec["flags"],
        "begin": [begin["type"], *begin["spec"].values()],
        "find": [find["type"], *find["spec"].values()],
    }


def facts(command, since, out):
    name, arity, flags, first, last, step, categories, tips, keys, subs = command[:10]
    out[name] = {
        "since": since.get(name, ""),
        "arity": arity,
        "flags": flags,
        "range": [first, last, step],
        "acl": [category.removeprefix("@") for category in categories],
        "tips": tips,
        "keys": [key_spec(spec) for spec in keys],
    }
    for sub in subs:
        facts(sub, since, out)


def main():
    host, port, directory = sys.argv[1:]
    since = {}
    for path in glob.glob(directory + "/*.json"):
        for name, about in json.load(open(path)).items():
            full = f"{about['container']}|{name}" if "container" in about else name
            since[full.lower()] = about["since"]
    stream = socket.create_connection((host, int(port))).makefile("rwb")
    stream.write(b"HELLO 3\r\nCOMMAND\r\n")
    stream.flush()
    read(stream)
    out = {}
    for command in read(stream):
        facts(command, since, out)
    lines = [f" {json.dumps(name)}: {json.dumps(out[name])}" for name in sorted(out)]
    print("{\n" + ",\n".join(lines) + "\n}")


main()
