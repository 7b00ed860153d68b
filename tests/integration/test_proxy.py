"""A coordinator behind nginx, with the files of deploy/nginx: workers and commands pass through, browsers see another certificate."""
import hashlib
import os
import re
import socket
import subprocess

import pytest
import requests

from common import HANGS, skerry, wait_until
from swarm import AnyName, running

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "nginx")
OUTSIDE = "127.0.0.2"  # what tokens name; the coordinator itself listens on 127.0.0.1
NGINX = """include /etc/nginx/modules-enabled/*-mod-stream.conf;
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{}}
{stream}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
{page}
}}
"""


def free_port():
    with socket.socket() as s:
        s.bind((OUTSIDE, 0))
        return s.getsockname()[1]


def replaced(text, **what):
    """The text with its patterns replaced; each must occur."""
    for old, new in what.values():
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    return text


class Proxy:
    def __init__(self, s):
        self.s, self.port = s, free_port()
        self.folder = os.path.join(s.folder, "nginx")
        os.makedirs(self.folder)
        self.cert, key = (os.path.join(self.folder, n) for n in ("cert.pem", "key.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=skerry.example.org", "-addext", "subjectAltName=DNS:skerry.example.org", "-keyout", key, "-out", self.cert],
                       check=True, capture_output=True)
        self.config = os.path.join(self.folder, "nginx.conf")
        rpc, http = s.ports["rpc_port"], s.ports["http_port"]
        stream = replaced(
            open(f"{DEPLOY}/stream.conf", encoding="utf-8").read(),
            rpc=(r"listen 7710;", f"listen {OUTSIDE}:{rpc};"), http=(r"listen 7711;", f"listen {OUTSIDE}:{http};"),
            rpc_to=(r"10\.0\.0\.5:7710", f"127.0.0.1:{rpc}"), http_to=(r"10\.0\.0\.5:7711", f"127.0.0.1:{http}"))
        page = replaced(
            open(f"{DEPLOY}/page.conf", encoding="utf-8").read(),
            port=(r"listen 443", f"listen {OUTSIDE}:{self.port}"), to=(r"10\.0\.0\.5:7711", f"127.0.0.1:{http}"),
            cert=(r"/\S*/fullchain\.pem", self.cert), key=(r"/\S*/privkey\.pem", key),
            pin=(r"/etc/nginx/skerry-cert\.pem", f"{s.data}/tls-cert.pem"))
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(NGINX.format(folder=self.folder, stream=stream, page=page))

    def start(self):
        process = self.s._launch("nginx", ["/usr/sbin/nginx", "-c", self.config])

        def up():
            assert process.poll() is None, self.s.tail("nginx")
            return all(reachable(p) for p in (self.port, self.s.ports["rpc_port"], self.s.ports["http_port"]))
        wait_until(up, 20, "nginx to listen")

    def browser(self):
        session = requests.Session()
        session.trust_env = False
        session.verify = self.cert
        session.mount("https://", AnyName())
        return session

    @property
    def url(self):
        return f"https://{OUTSIDE}:{self.port}"


def reachable(port):
    with socket.socket() as s:
        return s.connect_ex((OUTSIDE, port)) == 0


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    with running(tmp_path_factory.mktemp("proxy"), "--host", OUTSIDE) as s:
        s.proxy = Proxy(s)
        yield s


def test_workers_and_commands_pass_through(behind):
    """Only nginx listens at the tokens' address, and it is restarted in the middle of the job."""
    s = behind
    without = s.skerry("status")
    assert without.returncode == 3, "the coordinator is not to be reached without the proxy"
    s.proxy.start()
    doctor = s.skerry("doctor")
    assert doctor.returncode == 0 and f"of {OUTSIDE} answer with the key" in doctor.stdout, doctor.stdout
    s.worker("one")
    s.worker("two")
    job = s.submit(rounds=6, steps=30, sample_every=6)
    s.wait_round(job, 2)
    s.kill("nginx")
    s.proxy.start()
    s.wait_job(job, "done")
    done = s.skerry("watch", job)
    assert done.returncode == 0, done.stderr
    exported = s.skerry("export", job, "--out", os.path.join(s.folder, "model"))
    assert exported.returncode == 0, exported.stderr
    assert all(w["tasks_failed"] == 0 for w in s.get("/v1/workers").json()["items"])


def test_the_page_under_another_certificate(behind):
    s = behind
    if "nginx" not in s.processes:
        s.proxy.start()
    browser, url = s.proxy.browser(), s.proxy.url
    form = browser.get(url + "/", timeout=HANGS)
    assert form.status_code == 200 and "<form" in form.text
    login = browser.post(url + "/login", {"token": s.token}, timeout=HANGS, allow_redirects=False)
    assert login.status_code == 303 and "Secure" in login.headers["Set-Cookie"]
    assert browser.get(url + "/v1/status", timeout=HANGS).json()["cluster"] == s.get("/v1/status").json()["cluster"]
    # events come when they happen, not when a buffer is full
    events = browser.get(url + "/v1/events", stream=True, timeout=HANGS)
    assert events.headers["Content-Type"].startswith("text/event-stream")
    lines = events.iter_lines(chunk_size=1)
    job = s.submit(rounds=1, steps=1)
    assert any(line.startswith(b"event: job") for line in lines)
    events.close()
    # what changes something: for pages of this origin alone
    cancel = f"{url}/v1/jobs/{job}/cancel"
    assert browser.post(cancel, headers={"Origin": "https://elsewhere.example.org"}, timeout=HANGS).status_code == 403
    assert browser.post(cancel, headers={"Origin": url}, timeout=HANGS).status_code in (200, 409)
    # blobs, both ways, larger than what nginx lets pass by default
    program, blob = s.proxy.browser(), os.urandom(3 << 20)  # without the cookie, which is for pages
    sha = hashlib.sha256(blob).hexdigest()
    bearer = {"Authorization": s.session.headers["Authorization"]}
    ticket = program.post(url + "/v1/uploads", json={"sha256": sha, "size": len(blob)}, headers=bearer, timeout=HANGS).json()
    assert program.put(url + ticket["url"], blob, timeout=HANGS).status_code == 201
    part = program.get(f"{url}/v1/blobs/{sha}", headers={**bearer, "Range": "bytes=1048576-1048585"}, timeout=HANGS)
    assert part.status_code == 206 and part.content == blob[1 << 20:(1 << 20) + 10]


def test_a_certificate_in_between_is_refused_by_commands(behind):
    """Commands pin the coordinator's key, so that they refuse the port of the page."""
    s = behind
    if "nginx" not in s.processes:
        s.proxy.start()
    told = skerry("doctor", "--server", s.token, env={"XDG_CONFIG_HOME": s.folder})
    assert told.returncode == 0, told.stdout
    stream, page = s.ports["http_port"], s.proxy.port
    config = open(s.proxy.config, encoding="utf-8").read()
    swapped = config.replace(f"{OUTSIDE}:{stream}", f"{OUTSIDE}:{free_port()}").replace(f"{OUTSIDE}:{page}", f"{OUTSIDE}:{stream}")
    s.kill("nginx")
    with open(s.proxy.config, "w", encoding="utf-8") as f:
        f.write(swapped)
    process = s._launch("nginx", ["/usr/sbin/nginx", "-c", s.proxy.config])
    wait_until(lambda: process.poll() is not None or reachable(stream), 20, "nginx to listen")
    told = s.skerry("status")
    assert told.returncode == 3 and "is not the one this token was made for" in told.stderr
    assert "somebody in between" in s.skerry("doctor").stdout
