#!/usr/bin/env python3
"""Writes facts on the commands of a reference server.

Usage: command_facts.py HOST PORT COMMANDS_DIR > tests/data/commands.json
       command_facts.py --arguments HOST PORT COMMANDS_DIR > src/commands/server/arguments.txt

The second form writes the names, types and places of the arguments of commands that the server at
HOST and PORT, Flagstone, has too, for COMMAND DOCS: a line for each command, in the syntax that
src/commands/server/docs.rs describes.

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


def argument(about):
    """One argument, as `name:type` and what there is to say of it."""
    out = f"{about['name']}:{about['type']}"
    if "key_spec_index" in about:
        out += f"@{about['key_spec_index']}"
    if "token" in about:
        # Two quotes stand for the empty token.
        token = about["token"].strip('"')
        out += f"`{token}`"
    if about.get("display", about["name"]) != about["name"]:
        out += f"~{about['display']}"
    if "since" in about:
        out += f"^{about['since']}"
    if "deprecated_since" in about:
        out += f"!{about['deprecated_since']}"
    marks = {"optional": "?", "multiple": "*", "multiple_token": "+"}
    out += "".join(mark for name, mark in marks.items() if about.get(name))
    if "arguments" in about:
        out += "[" + " ".join(map(argument, about["arguments"])) + "]"
    return out


def arguments(host, port, directory):
    stream = socket.create_connection((host, int(port))).makefile("rwb")
    stream.write(b"COMMAND LIST\r\n")
    stream.flush()
    known = set(read(stream))
    lines = []
    for path in glob.glob(directory + "/*.json"):
        for name, about in json.load(open(path)).items():
            full = f"{about['container']}|{name}" if "container" in about else name
            words = [full.lower()]
            if words[0] not in known:
                continue
            if "SYSCMD" in about.get("doc_flags", []):
                words.append("%")
            if "deprecated_since" in about:
                words.append("!" + about["deprecated_since"])
            words += map(argument, about.get("arguments", []))
            if len(words) > 1:
                lines.append(" ".join(words))
    print("\n".join(sorted(lines)))


def main():
    if sys.argv[1] == "--arguments":
        return arguments(*sys.argv[2:])
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
