"""Connections of a client without a token: strangers.py PORT HOW-MANY, until it is ended.

Every eighth begins a handshake, the others send nothing; a connection that is cut is dialled again after 3 s.  Prints the number of
dials once a second."""
import collections
import contextlib
import select
import socket
import ssl
import sys
import time

AGAIN_S = 3
PACE = 100  # dials, at most, between two looks


def hello():
    """The first bytes of a client in a handshake."""
    out = ssl.MemoryBIO()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


class Strangers:
    def __init__(self, port, n):
        self.port, self.hello, self.dialled = port, hello(), 0
        self.again = collections.deque([0.0] * n)  # when who is not there dials
        self.held, self.poll = {}, select.poll()

    def dial(self):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", self.port))
        self.held[s.fileno()] = s
        self.dialled += 1
        self.poll.register(s, select.POLLIN | select.POLLHUP | (select.POLLOUT if self.dialled % 8 == 0 else 0))

    def look(self, fd, what):
        with contextlib.suppress(OSError):
            if what == select.POLLOUT:
                self.held[fd].send(self.hello)
                self.poll.modify(fd, select.POLLIN | select.POLLHUP)
                return
            if self.held[fd].recv(65536):
                return
        self.poll.unregister(fd)
        self.held.pop(fd).close()
        self.again.append(time.monotonic() + AGAIN_S)

    def run(self):
        said = 0.0
        while True:
            for _ in range(PACE):
                if self.again and self.again[0] <= time.monotonic():
                    self.again.popleft()
                    self.dial()
            for fd, what in self.poll.poll(20):
                self.look(fd, what)
            if time.monotonic() > said + 1:
                said = time.monotonic()
                print(self.dialled, flush=True)


if __name__ == "__main__":
    Strangers(int(sys.argv[1]), int(sys.argv[2])).run()
