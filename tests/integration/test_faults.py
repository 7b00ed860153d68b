"""Machines that vanish, hang and come back; disks that fill; blobs that rot; wrong keys."""
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

from common import BIN, HANGS, skerry, wait_until
from swarm import Swarm, running, swarm  # noqa: F401  (fixture)

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
from shim import Shim  # noqa: E402


# A phase that lasts about a second, so that there is something to interrupt.
SLOW = dict(dim=128, depth=6, batch=8, steps=60, images=1600)


def task_of(swarm, name):
    for w in swarm.get("/v1/workers").json()["items"]:
        if w["name"] == name:
            return w["task"]
    return None


def worker_state(swarm, name):
    return next(w["state"] for w in swarm.get("/v1/workers").json()["items"] if w["name"] == name)


def epochs_add_up(job):
    assert job["epochs"]
    for e in job["epochs"]:
        assert e["done"] + e["leased"] + e["pending"] == e["total"]


def samples_seen(job):
    return sum(e["done"] for e in job["epochs"])


def test_a_killed_worker_costs_its_phase_and_nothing_else(swarm):
    swarm.worker("a")
    swarm.worker("b")
    job = swarm.submit(**{**SLOW, "rounds": 4})
    swarm.wait_round(job, 1)
    wait_until(lambda: task_of(swarm, "a"), 30, "worker a to hold a lease")
    swarm.kill("a")
    done = swarm.wait_job(job, "done")
    epochs_add_up(done)
    assert samples_seen(done) == 4 * 60 * 8 * 2, "every round of both replicas counted once"


def test_a_stopped_worker_loses_its_lease_and_is_told(swarm):
    swarm.worker("a")
    job = swarm.submit(**{**SLOW, "rounds": 3, "replicas": 1})
    task = wait_until(lambda: task_of(swarm, "a"), 30, "worker a to hold a lease")
    swarm.wait_round(job, 1)
    swarm.kill("a", signal.SIGSTOP)
    swarm.worker("b")
    done = swarm.wait_job(job, "done", 90)
    assert task
    swarm.kill("a", signal.SIGCONT)
    wait_until(lambda: worker_state(swarm, "a") == "idle", 30, "the zombie to come back idle")
    assert samples_seen(swarm.job(job)) == samples_seen(done), "a late result counts for nothing"


def test_a_stopped_coordinator_takes_no_lease(tmp_path):
    with running(tmp_path, "--lease", "4s", "--heartbeat", "200ms") as swarm:  # a busy machine may keep a worker from saying anything for a second
        swarm.worker("a")
        job = swarm.submit(**{**SLOW, "rounds": 200, "replicas": 1})
        swarm.wait_round(job, 1)
        swarm.kill("coordinatord", signal.SIGSTOP)
        since = time.monotonic()
        wait_until(lambda: time.monotonic() > since + 10, 10, "two leases to pass")
        swarm.kill("coordinatord", signal.SIGCONT)
        before = swarm.job(job)["round"]
        swarm.wait_round(job, before + 2)
        assert "is lost" not in swarm.log("coordinatord"), "nobody could be heard"


def test_strangers_keep_nobody_out(swarm):
    """Strangers make more connections than either port has places: some with a handshake, none with a message."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE

    def joins(name):
        since = time.monotonic()
        assert swarm.get("/v1/status").status_code == 200
        swarm.worker(name)
        swarm.joined(name)
        return time.monotonic() - since

    took = []
    with contextlib.ExitStack() as held:
        while not took or took[-1][1] > 3 + 2 * took[-1][0]:  # what else the machine does may be at fault, but not each time
            assert len(took) < 4, took
            alone = joins(f"before-{len(took)}")
            for port in (swarm.ports["rpc_port"], swarm.ports["http_port"]):
                for i in range(1200):
                    s = socket.create_connection(("127.0.0.1", port), HANGS)
                    held.enter_context(tls.wrap_socket(s) if i % 8 == 0 else s)
            took.append((alone, joins(f"among-{len(took)}")))
            held.close()
        print(f"served and joined after {took[-1][1]:.2f} s, alone after {took[-1][0]:.2f} s")


def test_sigterm_hands_the_lease_back_at_once(swarm):
    swarm.worker("a")
    swarm.worker("b")
    swarm.joined("a", "b")
    job = swarm.submit(**{**SLOW, "dim": 256, "batch": 64, "steps": 900})
    wait_until(lambda: any(w["name"] == "b" and w["task_kind"] == "train" for w in swarm.get("/v1/workers").json()["items"]), 30, "b to train")
    assert swarm.kill("b", signal.SIGTERM) == 0
    gone = wait_until(lambda: next((s for s in [worker_state(swarm, "b")] if s not in ("busy", "idle")), None), 4, "b to be known as gone")
    assert gone == "left", "it has said so: its lease had not ended"
    assert not re.search(r"done task=\d+ train", swarm.log("b")), "it did not end its phase first"
    swarm.skerry("cancel", job)
    assert swarm.wait_job(job, "cancelled")["reason"]


def test_a_killed_coordinator_goes_on_where_it_was(swarm):
    swarm.worker("a")
    swarm.worker("b")
    job = swarm.submit(**{**SLOW, "rounds": 4})
    for n in (1, 2):
        swarm.wait_round(job, n)
        before = swarm.job(job)
        swarm.kill("coordinatord")
        swarm.coordinator()
        after = swarm.job(job)
        assert after["round"] >= before["round"], "an acknowledged round is never lost"
        assert samples_seen(after) >= samples_seen(before)
    done = swarm.wait_job(job, "done")
    epochs_add_up(done)
    assert samples_seen(done) == 4 * 60 * 8 * 2


def test_the_last_worker_may_leave_and_come_back(swarm):
    swarm.worker("a")
    job = swarm.submit(**{**SLOW, "rounds": 3, "replicas": 1})
    swarm.wait_round(job, 1)
    swarm.kill("a")
    wait_until(lambda: any("worker" in w["why"] for w in swarm.job(job)["waiting_for"]), 30,
               "the job to say that it waits for a worker")
    swarm.worker("a")
    swarm.wait_job(job, "done")


def blob_path(swarm, sha256):
    return os.path.join(swarm.data, "blobs", sha256[:2], sha256)


def test_a_flipped_bit_in_a_module_blob_is_found(swarm):
    swarm.worker("a")
    job = swarm.submit(rounds=2, steps=4, replicas=1)
    swarm.wait_job(job, "done")
    sha = swarm.job(job)["modules"][0]["sha256"]
    path = blob_path(swarm, sha)
    raw = bytearray(open(path, "rb").read())
    raw[len(raw) // 2] ^= 4
    os.chmod(path, 0o600)
    open(path, "wb").write(raw)
    got = swarm.skerry("export", job, "--raw", "--out", os.path.join(swarm.folder, "m"))
    assert got.returncode != 0
    assert "hash" in got.stderr or "SHA-256" in got.stderr
    assert not os.path.exists(os.path.join(swarm.folder, "m", "model.safetensors"))


def test_a_token_of_another_coordinator(swarm, tmp_path):
    other = Swarm(tmp_path / "other")
    try:
        other.coordinator()
        there = other.ports
        swarm.kill("coordinatord")
        # the other coordinator now listens where the token says
        other.kill("coordinatord")
        other.ports = swarm.ports
        other.coordinator()
        done = subprocess.run([f"{BIN}/workerd", "--join", swarm.worker_token, "--work-dir", str(tmp_path / "w")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANGS)
        assert done.returncode != 0
        assert "another" in done.stderr and "token" in done.stderr, done.stderr
        asked = skerry("status", "--server", swarm.token)
        assert asked.returncode == 3, asked.stderr
        assert there
    finally:
        other.stop()


def test_a_user_token_cannot_join_and_a_worker_token_cannot_ask(swarm, tmp_path):
    done = subprocess.run([f"{BIN}/workerd", "--join", swarm.token, "--work-dir", str(tmp_path / "w")],
                          stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode != 0 and "worker" in done.stderr
    asked = skerry("status", "--server", swarm.worker_token)
    assert asked.returncode == 3 and "user" in asked.stderr


def test_a_step_of_the_clock_is_said_and_costs_nothing(tmp_path):
    """As when NTP finds a clock that was a day off, in either direction, in the middle of a job."""
    shim = Shim(os.environ.get("SKERRY_BUILD", "build"), str(tmp_path / "shim"))
    with running(tmp_path, env=shim.env) as swarm:
        swarm.worker("a", "--price", "1/h")
        job = swarm.submit(rounds=100000, steps=10, replicas=1)
        swarm.wait_round(job, 1)
        for days, way in ((1, "forward"), (0, "back"), (-1, "back")):
            shim.tell(clock_s=days * 86400)
            said = f"24h00m {way}, or the machine was asleep"
            wait_until(lambda: swarm.log("coordinatord").count(said) > (days < 0), 20, "it to be said")  # noqa: B023
            swarm.wait_round(job, swarm.job(job)["round"] + 2)
            assert swarm.job(job)["elapsed_ms"] < 3600000 and swarm.job(job)["dollars"] < 0.5
        far = swarm.job(job)["elapsed_ms"]
        began = time.monotonic()
        for step in range(1, 7):  # as of a machine whose host corrects it again and again
            up = swarm.get("/v1/status").json()["uptime_ms"]
            shim.tell(clock_s=-86400 + 40 * step)
            wait_until(lambda: swarm.get("/v1/status").json()["uptime_ms"] > up + 1000, 20, "a look at the clock")  # noqa: B023
        assert swarm.job(job)["elapsed_ms"] - far < 1000 * (time.monotonic() - began) + 60000, "small steps do not add up"
        assert any("was set 24h00m back" in e["text"] for e in swarm.get("/v1/log").json()["items"])
        assert worker_state(swarm, "a") in ("busy", "idle") and "lost" not in swarm.log("coordinatord")
        swarm.kill("coordinatord")
        swarm.coordinator(env=shim.env)
        swarm.wait_round(job, swarm.job(job)["round"] + 2)
        assert swarm.job(job)["elapsed_ms"] < 3600000 and swarm.job(job)["dollars"] < 0.5, "nor after a restart"


def test_a_data_directory_has_one_coordinator(swarm):
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", swarm.data, "--rpc-port", "0", "--http-port", "0"],
                          stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode != 0
    assert "in use" in done.stderr and str(swarm.processes["coordinatord"].pid) in done.stderr
