"""An object store for tests that can misbehave: Swift (object_store.py), a process, behind a relay in threads of this one."""
import base64
import hashlib
import http.server
import os
import random
import subprocess
import sys
import threading

import requests

from common import HANGS, HERE
from object_store import ACCESS, SECRET
from swarm import die_with_us

KEY = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": "", "AWS_REGION": "us-east-1"}
BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Relay(http.server.ThreadingHTTPServer):
    """Passes requests on or spoils them: `mode` is ok, busy, denied, cut, silent or chance.  `seen` lists (client, method, status, bytes)."""
    daemon_threads = True

    def __init__(self, port, host):
        super().__init__((host, 0), Handler)
        self.port, self.mode, self.asked, self.over = port, "ok", 0, threading.Event()
        self.silence_s = 60
        self.native = None  # (URL, session) of Swift's own interface, to which conditional writes go, which its S3 layer refuses
        self.one_by_one = threading.Lock()  # of two of those at once Swift takes both
        self.refuse, self.refuse_mode = None, "busy"  # how requests with this in their URL end
        self.denied = ()  # methods that the key may not use
        self.of_workers = "ok"  # the mode of what a worker asks itself
        self.sums = None  # a dictionary: hashes of what was put are kept and told, as Amazon's store does and Swift does not
        self.seen = []
        self.chance, self.mishaps = random.Random(1), 0  # of mode "chance": one request in 20 goes wrong, in one of four ways
        self.url = f"http://{host}:{self.server_address[1]}"

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that went away is no news
            super().handle_error(request, address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer has several writes: the second one would wait 40 ms for the client's delayed acknowledgement

    def log_message(self, *args):
        pass

    def by(self):
        return "worker" if (self.headers["User-Agent"] or "").startswith("workerd") else "coordinator"

    def answer(self, status, headers, body):
        self.server.seen.append((self.by(), self.command, status, len(body) + int(self.headers.get("Content-Length", 0))))
        if self.lost:
            self.close_connection = True
            return
        cut = self.cut and self.command == "GET" and len(body) > 1
        self.wfile.write(f"HTTP/1.1 {status} -\r\n".encode())
        for name, value in headers:
            self.wfile.write(f"{name}: {value}\r\n".encode())
        self.wfile.write(b"\r\n" + (body[:(len(body) + 1) // 2] if cut else body))
        self.close_connection |= cut

    def by_chance(self):
        server = self.server
        if server.chance.random() >= 0.05:
            return "ok"
        server.mishaps += 1
        return server.chance.choice(["busy", "denied", "silent", "cut"])

    def relay(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked += 1
        mode = self.server.of_workers if self.server.mode == "ok" and self.by() == "worker" else self.server.mode
        if self.server.refuse and self.server.refuse in self.path:
            mode = self.server.refuse_mode
        if mode == "ok" and self.command in self.server.denied:
            mode = "denied"
        by_chance = mode == "chance"
        if by_chance:
            mode = self.by_chance()
        self.cut, self.lost = mode == "cut", by_chance and mode == "cut" and self.command == "PUT"  # lost: done, and not answered
        if mode == "silent":
            self.server.over.wait(self.server.silence_s)
            self.close_connection = True
        elif mode in ("busy", "denied"):
            text = BUSY if mode == "busy" else b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"
            self.answer(503 if mode == "busy" else 403, [("Content-Length", len(text)), ("Content-Type", "application/xml")], text)
        elif self.server.native and self.command == "PUT" and self.headers["If-None-Match"]:
            self.write_once(body)
        else:
            got = requests.request(self.command, f"http://127.0.0.1:{self.server.port}{self.path}", data=body,
                                   headers=dict(self.headers), stream=True, timeout=HANGS)
            content = got.raw.read()
            headers = [(k, v) for k, v in got.headers.items() if k.lower() not in ("connection", "transfer-encoding", "content-length")]
            headers += self.sum_of(body) if got.status_code == 200 else []
            length = got.headers.get("Content-Length", 0) if self.command == "HEAD" else len(content)
            self.answer(got.status_code, [*headers, ("Content-Length", length)], content)

    def sum_of(self, body):
        """The checksum that is kept at a PUT, and returned by a HEAD."""
        sums, key = self.server.sums, self.path.partition("?")[0]
        if sums is not None and self.command == "PUT":
            sums[key] = base64.b64encode(hashlib.sha256(body).digest()).decode()
        told = sums and self.command == "HEAD" and self.headers["x-amz-checksum-mode"] and sums.get(key)
        return [("x-amz-checksum-sha256", told)] if told else []

    def write_once(self, body):
        """A PUT with If-None-Match through Swift's own interface, without a check of the signature."""
        url, session = self.server.native
        with self.server.one_by_one:
            got = session.put(url + self.path.partition("?")[0], data=body, headers={"If-None-Match": "*"}, timeout=HANGS)
        if got.status_code == 201:
            self.answer(200, [("Content-Length", 0), ("ETag", f'"{got.headers["Etag"]}"')], b"")
        else:
            text = b"<Error><Code>PreconditionFailed</Code><Message>It is there.</Message></Error>"
            self.answer(got.status_code, [("Content-Length", len(text))], text)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay


class Store:
    def __init__(self, folder, host="127.0.0.1", conditional=False):
        os.makedirs(folder)
        self.log = open(os.path.join(folder, "log"), "w+b")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "object_store.py"), folder], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, preexec_fn=die_with_us)
        self.port = int(self.process.stdout.readline())
        self.session = requests.Session()
        self.session.trust_env = False
        self.native = f"http://127.0.0.1:{self.port}"
        who = self.session.get(self.native + "/auth/v1.0", headers={"X-Storage-User": ACCESS, "X-Storage-Pass": SECRET}, timeout=HANGS)
        self.session.headers["X-Auth-Token"] = who.headers["X-Auth-Token"]
        assert self.session.put(self.native + "/v1/AUTH_test/blobs", timeout=HANGS).status_code in (201, 202)
        self.relay = Relay(self.port, host)
        if conditional:
            self.relay.native = (self.native + "/v1/AUTH_test", self.session)
        threading.Thread(target=self.relay.serve_forever, daemon=True).start()

    def names(self):
        """The names of all objects, through Swift's own interface."""
        return self.session.get(self.native + "/v1/AUTH_test/blobs", timeout=HANGS).text.split()

    def blobs(self, prefix):
        return {name.rpartition("/")[2] for name in self.names() if name.startswith(prefix + "/blobs/")}

    def flags(self, prefix="run", bucket="blobs"):
        return ["--store", f"s3://{bucket}/{prefix}", "--store-endpoint", self.relay.url, "--store-workers", "yes", "--store-plain"]

    def print_log(self):
        """Prints the errors that Swift logged."""
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            print(f"---- {f.name} ----\n{f.read()[-4000:]}")

    def stop(self):
        self.relay.over.set()
        self.relay.shutdown()
        self.relay.server_close()
        self.process.kill()
        self.process.wait(HANGS)
