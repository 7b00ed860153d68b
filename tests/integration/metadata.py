"""Small servers that speak the metadata protocols of three clouds, as their manuals describe them, and take nothing else.

    with serving(Aws()) as service:
        swarm.worker("a", "--spot", "aws", "--spot-metadata", service.url)
        service.take_back(seconds=20)"""
import contextlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service:
    def __init__(self):
        self.asked = []  # "METHOD path"
        self.changed = threading.Condition()
        self.at = None  # when the machine goes

    def take_back(self, seconds):
        with self.changed:
            self.at = time.time() + seconds
            self.changed.notify_all()

    def answer(self, method, path, query, headers):
        """(status, body, headers)"""
        raise NotImplementedError


class Aws(Service):
    """IMDSv2: answers only with a token; 404 while there is no notice, and for the paths of other clouds."""

    def __init__(self):
        super().__init__()
        self.token = secrets.token_urlsafe(40) + "=="
        self.rebalance = False

    def answer(self, method, path, query, headers):
        if path == "/latest/api/token":
            seconds = headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            ok = method == "PUT" and seconds.isdigit() and 1 <= int(seconds) <= 21600
            return (200, self.token, {}) if ok else (400, "", {})
        if not path.startswith("/latest/"):
            return 404, "<html>not found</html>", {}
        if method != "GET" or headers.get("X-aws-ec2-metadata-token") != self.token:
            return 401, "", {}
        if path == "/latest/meta-data/spot/instance-action" and self.at:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at))
            return 200, json.dumps({"action": "terminate", "time": when}), {}
        if path == "/latest/meta-data/events/recommendations/rebalance" and self.rebalance:
            return 200, json.dumps({"noticeTime": "2026-11-22T08:22:00Z"}), {}
        return 404, "<html>not found</html>", {}


class Gcp(Service):
    """Answers only with Metadata-Flavor; wait_for_change holds the answer until the value has another ETag."""

    def answer(self, method, path, query, headers):
        if method != "GET" or headers.get("Metadata-Flavor") != "Google":
            return 403, "", {}
        flavor = {"Metadata-Flavor": "Google"}
        if path == "/computeMetadata/v1/instance/maintenance-event":
            return 200, "NONE", flavor
        if path != "/computeMetadata/v1/instance/preempted":
            return 404, "", flavor
        with self.changed:
            if query.get("wait_for_change") == "true" and query.get("last_etag") == self.etag():
                self.changed.wait_for(lambda: query["last_etag"] != self.etag(), float(query.get("timeout_sec", 60)))
            return 200, "TRUE" if self.at else "FALSE", {**flavor, "ETag": self.etag()}

    def etag(self):
        return "7c93f5a2" if self.at else "411261ca"


class Azure(Service):
    """Answers only with Metadata: true and a version; events name the machines that they concern."""
    VM = "trainer-3"

    def answer(self, method, path, query, headers):
        if method != "GET" or headers.get("Metadata", "").lower() != "true" or "api-version" not in query:
            return 400, "", {}
        if path == "/metadata/instance/compute/name":
            return 200, self.VM, {}
        if path != "/metadata/scheduledevents":
            return 404, "", {}
        other = {"EventId": "1", "EventStatus": "Scheduled", "EventType": "Preempt", "ResourceType": "VirtualMachine",
                 "Resources": ["trainer-4"], "NotBefore": "Mon, 19 Sep 2022 18:29:47 GMT"}
        events = [other]
        if self.at:
            when = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(self.at))
            events.append({**other, "EventId": "2", "Resources": [self.VM], "NotBefore": when})
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": events}), {}


@contextlib.contextmanager
def serving(service, port=0):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            path, _, rest = self.path.partition("?")
            query = dict(part.partition("=")[::2] for part in rest.split("&") if part)
            service.asked.append(f"{self.command} {path}")
            status, body, headers = service.answer(self.command, path, query, self.headers)
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

        do_GET = do_PUT = handle_any

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    service.port = server.server_address[1]
    service.url = f"http://127.0.0.1:{service.port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
