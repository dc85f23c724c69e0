"""A connection between two programs that can be cut, stall, and be slow."""

import socket
import threading
import time

import servers

# Seconds for the connection to the other program.
CONNECT = 5


class Proxy:
    """Passes bytes between a port of its own and another address, until the link is cut or stalls.

    to: gives host and port of the other program at the time of a connection. delay: seconds between a
    request and the other program, as a long way has them.
    """

    def __init__(self, to, delay=0.0):
        self.to, self.delay, self.pairs = to, delay, set()
        self.flowing = threading.Event()
        self.flowing.set()
        self.refusing = False
        self.left, self.action = 0, None
        self.lock = threading.Lock()
        self.port = servers.free_port()
        self.listener = socket.create_server((servers.HOST, self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client):
        self.flowing.wait()
        try:
            other = socket.create_connection(self.to(), CONNECT)
        except OSError:
            client.close()
            return
        other.settimeout(None)
        for end in (client, other):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair, answered = (client, other), threading.Event()
        answered.set()
        with self.lock:
            self.pairs.add(pair)
        threading.Thread(target=self.copy, args=(other, client, pair, answered.set), daemon=True).start()
        self.copy(client, other, pair, lambda: self.travel(answered))

    def travel(self, answered):
        """Counts, and waits, if a piece begins a request: it is the first one since the last reply."""
        if not answered.is_set():
            return
        answered.clear()
        with self.lock:
            self.left -= 1
            action = self.action if self.left == 0 else None
        if action:
            threading.Thread(target=action, daemon=True).start()
            # The action is to come first, unless it waits itself.
            time.sleep(0.001)
        if self.delay:
            time.sleep(self.delay)

    def after(self, requests, action):
        """Carries an action out at the start of the request of that number from now on; `None`: no action any more."""
        with self.lock:
            self.left, self.action = requests, action

    def copy(self, source, target, pair, before):
        try:
            while data := source.recv(1 << 16):
                self.flowing.wait()
                before()
                target.sendall(data)
        except OSError:
            pass
        self.end(pair)

    def end(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def cut(self):
        """Ends all connections."""
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self.end(pair)

    def stall(self):
        """Lets nothing through, in either direction, until `flow`."""
        self.flowing.clear()

    def flow(self):
        self.flowing.set()

    def close(self):
        self.listener.close()
        self.cut()
