"""Stands in for systemd in `packaging/try`: runs the command of a unit in a root directory, as the unit's
user, with its limits, its umask and its socket for messages, and checks what the service says.

  stand_in.py ROOT UNIT
"""

import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

# SIOCSIFFLAGS and IFF_UP.
SET_FLAGS, IS_UP = 0x8914, 1


class Unit:
    """The directives of a unit that this stands in for."""

    def __init__(self, text):
        lines = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
        self.directives = dict(lines)

    def __getitem__(self, name):
        return self.directives[name]


class Service:
    """A run of the service, from its start to its end."""

    def __init__(self, root, unit):
        self.root, self.unit, self.said = root, unit, b""
        path = root / "run" / "notify"
        path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        os.chmod(path, 0o777)
        entry = next(line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith(unit["User"] + ":"))
        uid, gid = (int(field) for field in entry.split(":")[2:4])
        # A container may not be allowed to raise it.
        files = min(int(unit["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])

        def enter():
            os.chroot(root)
            os.chdir("/")
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            os.umask(int(unit["UMask"], 8))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)

        environment = {"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": "/run/notify",
                       "WATCHDOG_USEC": str(int(unit["WatchdogSec"]) * 1_000_000)}
        self.log = open(root / "run" / "service.log", "ab")
        self.process = subprocess.Popen(unit["ExecStart"].split(), preexec_fn=enter, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)
        self.expect(b"READY=1", int(unit["TimeoutStartSec"]))

    def expect(self, message, seconds):
        deadline = time.monotonic() + seconds
        while message not in self.said:
            if self.process.poll() is not None:
                raise SystemExit(f"the service ended with {self.process.returncode}:\n{self.tail()}")
            self.socket.settimeout(max(0.01, min(1, deadline - time.monotonic())))
            try:
                self.said += self.socket.recv(4096) + b"\n"
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the service has not said {message.decode()}:\n{self.tail()}") from None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(int(self.unit["TimeoutStopSec"]))
        self.socket.settimeout(1)
        while b"STOPPING=1" not in self.said:
            try:
                self.said += self.socket.recv(4096)
            except TimeoutError:
                break
        if status != 0 or b"STOPPING=1" not in self.said:
            raise SystemExit(f"the service ended with {status}, and has said {self.said!r}:\n{self.tail()}")

    def tail(self):
        return (self.root / "run" / "service.log").read_text(errors="replace")[-2000:]


def ask(port, *words):
    """One command by the protocol; the reply as it comes."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request.encode())
        return connection.recv(4096)


def bring_loopback_up():
    """Of a network namespace of its own, which begins with it down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", IS_UP))


def main():
    bring_loopback_up()
    root, unit = Path(sys.argv[1]), Unit(Path(sys.argv[2]).read_text())
    configuration = (root / "etc/flagstone/flagstone.conf").read_text()
    port = next((int(line.split()[1]) for line in configuration.splitlines() if line.startswith("port ")), 6379)
    began = time.monotonic()
    service = Service(root, unit)
    assert ask(port, "SET", "key", "value") == b"+OK\r\n"
    print(f"the first SET is stored {time.monotonic() - began:.2f} s after the start")
    assert user_of(service.process.pid) != 0, "the service runs as root"
    service.stop()
    again = Service(root, unit)
    assert ask(port, "GET", "key") == b"$5\r\nvalue\r\n"
    again.stop()
    print("it said that it was ready and that it stopped, and has the key after a restart")


def user_of(pid):
    """The user id of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Uid:")).split()[1])


if __name__ == "__main__":
    main()
