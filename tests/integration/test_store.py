"""Blobs in an object store: a real one (Swift, which verifies signatures) behind a relay that can misbehave."""
import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

import pytest
import requests

from common import BIN, HANGS, skerry, wait_until
from object_store import ACCESS, SECRET
from relay import KEY, Store
from swarm import Swarm, running as swarm_running
import test_folds_at_workers as folds
from test_faults import epochs_add_up

TOOLS = os.path.join(os.environ.get("SKERRY_BUILD", "build"), "release", "tests", "tools")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    made = Store(str(tmp_path_factory.mktemp("swift") / "store"))
    yield made
    made.stop()


@pytest.fixture
def store(one):
    one.relay.mode = one.relay.of_workers = "ok"
    one.relay.seen.clear()
    yield one
    one.print_log()
    one.relay.mode = one.relay.of_workers = "ok"


@contextlib.contextmanager
def running(folder, store, prefix, *more):
    s = Swarm(folder)
    try:
        s.coordinator(*store.flags(prefix), *more, env=KEY)
        yield s
    finally:
        s.stop()


def health(swarm):
    return swarm.get("/v1/status").json()["blob_store"]


def all_sent(swarm):
    return wait_until(lambda: health(swarm)["waiting"] == 0, 60, "the store to have all blobs")


def stand_still(swarm, *names):
    """Stops workers in the middle of a job until the coordinator has folded all that it can, and the store has it."""
    for name in names:
        swarm.kill(name, signal.SIGSTOP)
    wait_until(lambda: not swarm.folds(), 30, "steps under way to be made")
    all_sent(swarm)


def nobody_failed(swarm):
    workers = swarm.get("/v1/workers").json()["items"]
    assert all(w["tasks_failed"] == 0 and w["state"] != "quarantined" for w in workers), workers


def test_a_job(tmp_path, store):
    """A job trains as without a store; its blobs are in the bucket, and a coordinator without a cache goes on from there."""
    with running(tmp_path, store, "job") as swarm:
        for name in "ab":
            swarm.worker(name)
        job = swarm.submit(rounds=6, eval_every=2, sample_every=3)
        swarm.wait_round(job, 2)
        stand_still(swarm, *"ab")  # else there is something new in the cache when it goes
        swarm.kill("coordinatord")
        shutil.rmtree(os.path.join(swarm.data, "cache"))
        swarm.coordinator(*store.flags("job"), env=KEY)
        for name in "ab":
            swarm.kill(name, signal.SIGCONT)
        swarm.wait_job(job, "done")
        epochs_add_up(swarm.job(job))
        nobody_failed(swarm)
        all_sent(swarm)
        assert os.path.exists(os.path.join(swarm.data, "blob-store"))
        assert not os.path.exists(os.path.join(swarm.data, "blobs"))
        version = swarm.job(job)["modules"][0]["sha256"]
        assert version in store.blobs("job")
        swarm.kill("coordinatord", signal.SIGTERM)
        shutil.rmtree(os.path.join(swarm.data, "cache"))
        swarm.coordinator(*store.flags("job"), env=KEY)
        out = os.path.join(swarm.folder, "model.safetensors")
        done = swarm.skerry("export", job, "-o", out)
        assert done.returncode == 0, done.stderr
        assert health(swarm)["bytes"]["down"] > 0
        swarm.get("/metrics").text.index("skerry_blob_store_got_bytes_total")


def data_bytes(swarm):
    """Bytes of blobs between the coordinator and its clients."""
    here = swarm.get("/v1/status").json()["bytes_here"]
    return here["data"]


def test_past_the_coordinator(tmp_path, store):
    """Workers put and get blobs directly at the store, by URLs that sign length and hash; none passes the coordinator."""
    with running(tmp_path, store, "past") as swarm:
        for name in "ab":
            swarm.worker(name)
        job = swarm.submit(rounds=6, eval_every=2, sample_every=3)
        before = data_bytes(swarm)
        swarm.wait_job(job, "done")
        epochs_add_up(swarm.job(job))
        nobody_failed(swarm)
        assert data_bytes(swarm) == before, store.relay.seen
        seen = [(method, status) for who, method, status, _ in store.relay.seen if who == "worker"]
        assert {m for m, _ in seen} == {"GET", "PUT"} and {s for _, s in seen} <= {200, 206}, seen
        assert sum(m == "PUT" for m, _ in seen) >= 12, "contributions"
        all_sent(swarm)
        assert swarm.job(job)["modules"][0]["sha256"] in store.blobs("past")


@pytest.mark.parametrize("mode", ["busy", "denied", "cut"])
def test_the_store_fails_workers(tmp_path, store, mode):
    """A store that refuses workers (an expired URL), is busy or cuts: they try again, then go through the coordinator."""
    with running(tmp_path, store, "of" + mode) as swarm:
        for name in "ab":
            swarm.worker(name)
        store.relay.of_workers = mode
        job = swarm.submit(rounds=3, steps=2)
        swarm.wait_job(job, "done")
        epochs_add_up(swarm.job(job))
        nobody_failed(swarm)
        assert [s for who, _, s, _ in store.relay.seen if who == "worker" and s in (503, 403, 206)]


@pytest.mark.parametrize("mode", ["busy", "denied", "silent"])
def test_out_of_reach(tmp_path, store, mode):
    """While the store takes nothing the job goes on, no worker is blamed, and the status tells; then everything is sent."""
    with running(tmp_path, store, mode) as swarm:
        for name in "ab":
            swarm.worker(name)
        job = swarm.submit(rounds=8, steps=2)
        swarm.wait_round(job, 1)
        for name in "ab":
            swarm.kill(name, signal.SIGSTOP)
        assert swarm.job(job)["state"] == "running"
        store.relay.mode = mode
        for name in "ab":
            swarm.kill(name, signal.SIGCONT)
        swarm.wait_job(job, "done")
        nobody_failed(swarm)
        assert health(swarm)["waiting"] > 0
        if mode != "silent":  # that takes half a minute to be told from slowness
            def told():
                waits = swarm.get("/v1/status").json()["waiting_for"]
                return [w for w in waits if w["what"].startswith("the object store (")]
            waits = wait_until(told, 30, "the status to say it")
            assert ("busy or broken: HTTP 503" if mode == "busy" else "the bucket blobs (HTTP 403") in waits[0]["why"]
            assert health(swarm)["failing_ms"] >= 0 and health(swarm)["error"]
        store.relay.mode = "ok"
        store.relay.over.set()
        all_sent(swarm)
        store.relay.over.clear()
        version = swarm.job(job)["modules"][0]["sha256"]
        assert version in store.blobs(mode)
        assert not health(swarm)["error"]


def test_reading_is_cut_and_refused(tmp_path, store):
    """A coordinator without a cache reads from a store that cuts and then is gone: the job waits, and ends well."""
    with running(tmp_path, store, "cut", "--lease", "2s", "--heartbeat", "500ms") as swarm:
        swarm.worker("a")
        job = swarm.submit(rounds=25, steps=2, replicas=1)
        swarm.wait_round(job, 1)
        stand_still(swarm, "a")
        assert swarm.job(job)["state"] == "running"
        swarm.kill("a")
        swarm.kill("coordinatord")
        shutil.rmtree(os.path.join(swarm.data, "cache"))
        swarm.coordinator(*store.flags("cut"), "--lease", "2s", "--heartbeat", "500ms", env=KEY)
        store.relay.mode = "busy"
        asked = store.relay.asked
        swarm.worker("b")
        wait_until(lambda: store.relay.asked > asked, 60, "a blob to be asked for")
        wait_until(lambda: health(swarm)["error"], 30, "the status to say it")
        store.relay.mode = "cut"
        swarm.wait_round(job, swarm.job(job)["round"] + 1)
        assert health(swarm)["repeats"] > 0
        store.relay.mode = "ok"  # each blob takes seconds in halves of halves
        swarm.wait_job(job, "done")
        nobody_failed(swarm)
        epochs_add_up(swarm.job(job))


def test_a_damaged_copy(tmp_path, store):
    """The version to fold into is damaged on the coordinator's disk: it is fetched again, and the job goes on."""
    with running(tmp_path, store, "damaged") as swarm:
        swarm.worker("a")
        job = swarm.submit(rounds=20, steps=2, replicas=1)
        swarm.wait_round(job, 2)
        stand_still(swarm, "a")
        assert swarm.job(job)["state"] == "running"
        version = swarm.job(job)["modules"][0]["sha256"]
        swarm.kill("coordinatord")
        (path,) = [os.path.join(where, name) for where, _, names in os.walk(os.path.join(swarm.data, "cache")) for name in names if version.startswith(name) or name.startswith(version)]
        with open(path, "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        swarm.coordinator(*store.flags("damaged"), env=KEY)
        swarm.kill("a", signal.SIGCONT)
        swarm.wait_job(job, "done")
        nobody_failed(swarm)
        assert "was damaged on the coordinator's disk and is fetched again" in swarm.log("coordinatord")


@pytest.mark.parametrize("recipe", [folds.DILOCO, folds.SHARED])
def test_workers_fold(tmp_path, store, recipe):
    """With a store that returns checksums workers make outer steps: the coordinator reads only some cells of a version, and writes none;
    work under way when it lost its cache goes on, and blobs that are not needed any more leave the bucket."""
    store.relay.sums, prefix = {}, "folds" if recipe == folds.DILOCO else "shared"
    try:
        with running(tmp_path, store, prefix) as swarm:
            for name in "ab":
                swarm.worker(name)
            job = folds.submit(swarm, "auto", recipe, rounds=12, steps=2, dim=128, depth=4)
            swarm.wait_round(job, 1)
            all_sent(swarm)
            first, before = swarm.job(job)["round"], health(swarm)["bytes"]
            swarm.wait_round(job, first + 1)
            passed, n = health(swarm)["bytes"], swarm.job(job)["round"] + 1 - first
            params = sum(m["parameters"] for m in swarm.job(job)["modules"])
            # Headers, and four or eight cells of nine files; a version alone is 4 bytes a parameter.
            assert passed["up"] == before["up"], (before, passed)
            assert 0 < passed["down"] - before["down"] < n * params, (before, passed, n, params)
            swarm.kill("coordinatord")
            shutil.rmtree(os.path.join(swarm.data, "cache"))
            swarm.coordinator(*store.flags(prefix), env=KEY)
            swarm.wait_job(job, "done")
            epochs_add_up(swarm.job(job))
            nobody_failed(swarm)
            log = swarm.log("coordinatord")
            assert log.count("OUTER task") >= 4 and "made by the coordinator, too" not in log
            all_sent(swarm)

            def same():
                status = swarm.get("/metrics").text
                return int(float(status.split("\nskerry_blobs ")[1].split("\n")[0])) == len(store.blobs(prefix))
            wait_until(same, 30, "the bucket to have what is on record and no more")
    finally:
        store.relay.sums = None


def test_what_was_spent_stays(tmp_path, store):
    """Dollars are kept at the price of their time: a coordinator that starts with other prices, or none, shows what was spent before."""
    prices = ("--egress-price", "90", "--request-price", "400")
    spent = lambda: (swarm.job(job)["cost"]["egress"], health(swarm)["request_dollars"], health(swarm)["requests"])  # noqa: E731
    with running(tmp_path, store, "spent", *prices) as swarm:
        swarm.worker("a")
        job = swarm.submit(rounds=3, steps=2, replicas=1)
        swarm.wait_job(job, "done")
        swarm.kill("a", signal.SIGTERM)
        all_sent(swarm)
        egress, dollars, n = spent()
        assert egress > 0 and abs(dollars - n * 400e-6) < 1e-9, "one price so far"
        swarm.kill("coordinatord", signal.SIGTERM)
        swarm.coordinator(*store.flags("spent"), "--egress-price", "1", "--request-price", "4000", env=KEY)
        second = spent()
        assert second[0] == egress
        assert abs(second[1] - n * 400e-6 - second[2] * 4000e-6) < 1e-9, (second, n)
        swarm.kill("coordinatord", signal.SIGTERM)
        swarm.coordinator(*store.flags("spent"), env=KEY)
        third = spent()
        assert third[0] == egress and abs(third[1] - n * 400e-6 - second[2] * 4000e-6) < 1e-9, (third, n, second)
        assert swarm.skerry("cost").stdout.count("$") == 2, swarm.skerry("cost").stdout


def test_an_audit_brings_what_it_looks_at(tmp_path, store):
    """An audit fetches the files from which workers made a version, which were never here; the coordinator runs meanwhile."""
    with running(tmp_path, store, "audited") as swarm:
        for name in "ab":
            swarm.worker(name)
        job = swarm.submit(rounds=100000, steps=20)
        swarm.wait_round(job, 4)
        for name in "ab":  # what it looks at is still there when it does
            swarm.kill(name, signal.SIGSTOP)
        settings = tmp_path / "settings.yaml"
        settings.write_text(f"store_endpoint: {store.relay.url}\nstore_plain: true\n")

        def audit(*flags, env=KEY):
            return skerry("audit", job, "--data-dir", swarm.data, *flags, env=env)

        done = audit("--config", settings)
        assert done.returncode == 0 and "good: " in done.stdout, done.stdout + done.stderr
        assert "stay in the store, which guards its own bytes" in done.stdout and "0 of " not in done.stdout
        assert not os.path.exists(os.path.join(swarm.data, ".capture"))
        swarm.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        swarm.wait_job(job, "cancelled")
        all_sent(swarm)
        delta = max(swarm.get("/v1/modules").json()["items"][0]["versions"], key=lambda v: v["version"])["delta"]["sha256"]
        swarm.kill("coordinatord", signal.SIGTERM)
        shutil.rmtree(os.path.join(swarm.data, "cache"))
        done = audit("--config", settings)
        assert done.returncode == 0, done.stdout + done.stderr
        small = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8m none /mnt && '
                                'cp -r "$2" /mnt/data && exec "$0" audit "$1" --data-dir /mnt/data --config "$3"', f"{BIN}/skerry", str(job), swarm.data,
                                settings], env={**os.environ, **KEY}, capture_output=True, text=True, timeout=HANGS)
        assert small.returncode == 1 and "too little for a file of" in small.stderr, "a coordinator needs the room that is left: " + small.stderr
        url = f"{store.native}/v1/AUTH_test/blobs/audited/blobs/{delta}"
        whole = store.session.get(url, timeout=HANGS).content
        assert store.session.put(url, data=bytes([whole[0] ^ 1]) + whole[1:], timeout=HANGS).status_code == 201
        done = audit("--config", settings)
        assert done.returncode == 1 and "is damaged" in done.stdout and delta in done.stdout, done.stdout + done.stderr
        assert store.session.delete(url, timeout=HANGS).status_code == 204
        assert delta in audit("--config", settings).stderr


def test_small_cache(tmp_path, store):
    """The coordinator's cache holds less than the blobs of a job."""
    with running(tmp_path, store, "small", "--store-cache", "1MB") as swarm:
        for name in "ab":
            swarm.worker(name)
        job = swarm.submit(rounds=4, images=1200)

        def within():
            h = health(swarm)
            assert h["cache_bytes"] <= h["cache_max_bytes"] == 1000000
            return swarm.job(job)["state"] == "done"
        wait_until(within, 180, "the job to be done")
        nobody_failed(swarm)
        all_sent(swarm)
        assert len(store.blobs("small")) > 10
        assert health(swarm)["bytes"]["down"] > 0, "something came back"


def test_too_small_a_cache(tmp_path, store):
    """An outer step whose files do not fit the cache is tried again, and the status gives advice; with a larger cache it goes on."""
    with running(tmp_path, store, "toosmall", "--store-cache", "1MB") as swarm:
        swarm.worker("a")
        job = swarm.submit(rounds=2, replicas=1, dim=64)
        wait_until(lambda: [w for w in swarm.get("/v1/status").json()["waiting_for"] if "raise --store-cache" in w["why"]], 60,
                   "the status to say it")
        swarm.kill("coordinatord")
        swarm.coordinator(*store.flags("toosmall"), env=KEY)
        swarm.wait_job(job, "done")
        nobody_failed(swarm)


def test_what_is_deleted_goes(tmp_path, store):
    with running(tmp_path, store, "gone") as swarm:
        swarm.worker("a")
        job = swarm.submit(rounds=6, steps=2, replicas=1)
        swarm.wait_job(job, "done")
        all_sent(swarm)

        def same():
            status = swarm.get("/metrics").text
            count = int(float(status.split("\nskerry_blobs ")[1].split("\n")[0]))
            return count == len(store.blobs("gone"))
        wait_until(same, 30, "the bucket to have what is on record and no more")


def test_parts(tmp_path, store):
    """An upload in parts to the real store; after one part was refused, the next try sends only the missing parts."""
    path = str(tmp_path / "file")
    with open(path, "wb") as f:
        f.write(os.urandom(1000000))

    def put():
        return subprocess.run([f"{TOOLS}/common/net/s3_parts", store.relay.url, "blobs", "parts/one", path, "300000"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=HANGS, env={**os.environ, **KEY})
    store.relay.refuse = "partNumber=3"
    done = put()
    assert done.returncode == 1 and "SlowDown" in done.stderr
    store.relay.refuse = None
    done = put()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "7\n"  # uploads, parts of this one, two parts, the end, HEAD and GET
    assert "parts/one" in store.names()


class Metadata(http.server.BaseHTTPRequestHandler):
    """Amazon's metadata service: gives the key of a role to clients that have asked for a token first."""

    def log_message(self, *args):
        pass

    def answer(self):
        if self.command == "PUT":
            text = "word" if self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else None
        elif self.headers["X-aws-ec2-metadata-token"] != "word":
            text = None
        else:
            role = {"AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "Token": "of/a+session==", "Expiration": "2099-01-01T00:00:00Z"}
            text = {"/latest/meta-data/iam/security-credentials/": "role\n",
                    "/latest/meta-data/iam/security-credentials/role": json.dumps(role)}.get(self.path)
        self.send_response(200 if text else 401)
        self.send_header("Content-Length", len(text or ""))
        self.end_headers()
        self.wfile.write((text or "").encode())

    do_GET = do_PUT = answer


@pytest.mark.parametrize("busy", [2, 1000])
def test_a_machine_whose_service_is_busy(tmp_path, store, busy):
    """The service is asked again; if it stays busy, the exit status tells the unit to start the daemon again."""
    class Busy(Metadata):
        left = busy

        def do_GET(self):
            Busy.left -= 1
            if Busy.left < 0:
                return self.answer()
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as metadata:
        threading.Thread(target=metadata.serve_forever, daemon=True).start()
        env = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_address[1]}"}
        if busy > 10:
            assert "metadata service does not answer just now" in start(tmp_path / "a", *store.flags("busyrole"), env=env, status=1)
        else:
            swarm = Swarm(tmp_path)
            swarm.coordinator(*store.flags("busyrole"), env=env)
            swarm.stop()
        metadata.shutdown()


def test_the_role_of_a_machine(tmp_path, store):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as metadata:
        threading.Thread(target=metadata.serve_forever, daemon=True).start()
        env = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_address[1]}"}
        swarm = Swarm(tmp_path)
        try:
            swarm.coordinator(*store.flags("role"), env=env)
            assert not health(swarm)["error"] and "role/cluster" in store.names()
        finally:
            swarm.stop()
            metadata.shutdown()


# ---- starting ----


def start(folder, *flags, env=None, status=None):
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", str(folder), "--listen", "127.0.0.1", "--rpc-port", "0", "--http-port", "0", *flags],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANGS,
                          env={**os.environ, **KEY, **(env or {})})
    assert done.returncode != 0 and status in (None, done.returncode), done.stderr
    return done.stderr


def test_refused_at_the_start(tmp_path, store):
    flags = store.flags("start")
    assert "there is no bucket nothere" in start(tmp_path / "a", *store.flags("start", "nothere"))
    assert "AWS_SECRET_ACCESS_KEY does not belong to" in start(tmp_path / "a", *flags, env={"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert "AWS_SECRET_ACCESS_KEY is not: set both" in start(tmp_path / "a", *flags, env={"AWS_SECRET_ACCESS_KEY": ""})
    assert "--store-plain allows it" in start(tmp_path / "a", *flags[:-1])
    assert "expected s3://BUCKET" in start(tmp_path / "a", "--store", "blobs", *flags[2:])
    assert "--store-endpoint is for an object store: name that" in start(tmp_path / "a", *flags[2:])
    assert "--store-cache is for an object store: name that" in start(tmp_path / "a", "--store-cache", "1GB")
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    assert "onnect" in start(tmp_path / "a", *flags[:2], "--store-plain", "--store-endpoint", f"http://127.0.0.1:{closed.getsockname()[1]}")
    at = flags.index("--store-endpoint") + 1
    assert "may be without TLS" in start(tmp_path / "a", *flags[:at], flags[at].replace("http:", "https:"), *flags[at + 1:])
    with swarm_running(tmp_path / "tls") as tls:
        assert "begins with https://" in start(tmp_path / "a", *flags[:at], tls.url.replace("https:", "http:"), *flags[at + 1:])
    store.relay.mode = "denied"
    assert "may not read the bucket blobs (HTTP 403, Access Denied.)" in start(tmp_path / "a", *flags)


def test_one_place(tmp_path, store):
    """A data dir and a prefix belong to each other."""
    with running(tmp_path, store, "mine") as swarm:
        swarm.worker("a")
        swarm.wait_job(swarm.submit(rounds=1), "done")
        done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", swarm.data, "--backup", str(tmp_path / "b")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANGS)
        assert done.returncode != 0 and "are in s3://blobs/mine, and only those of a folder" in done.stderr
        swarm.kill("coordinatord", signal.SIGTERM)
        assert "start with --store s3://blobs/mine" in start(swarm.data)
        assert "start with --store s3://blobs/mine" in start(swarm.data, *store.flags("other"))
        assert "has the blobs of another cluster" in start(tmp_path / "c", *store.flags("mine"))
        os.remove(os.path.join(swarm.data, "coordinator.db"))
        assert "is gone or empty, but s3://blobs/mine has files" in start(swarm.data, *store.flags("mine"))


def test_a_folder_is_not_left(tmp_path, store):
    swarm = Swarm(tmp_path)
    try:
        swarm.coordinator()
        assert swarm.get("/v1/status").json()["blob_store"] is None
        swarm.worker("a")
        swarm.wait_job(swarm.submit(rounds=1), "done")
        swarm.kill("coordinatord", signal.SIGTERM)
        assert "blobs in its folder: start without --store" in start(swarm.data, *store.flags("moved"))
    finally:
        swarm.stop()


