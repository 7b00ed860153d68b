"""Access to a swarm, with real daemons: tokens with ends and limits, the keys of workers, and revoked tokens and workers."""
import os
import select
import shutil
import signal
import subprocess
import time

import pytest
import requests

from common import BIN, HANGS, free_ports, skerry, wait_until
from swarm import swarm  # noqa: F401  (fixture)

REFUSED = 3  # exit status of workerd


def tokens(swarm):
    return {t["name"]: t for t in swarm.get("/v1/tokens").json()["items"]}


def workers(swarm):
    return {w["name"]: w for w in swarm.get("/v1/workers").json()["items"]}


def here(swarm, *names):
    wait_until(lambda: {n for n, w in workers(swarm).items() if w["state"] not in ("lost", "left")} == set(names), 20, names)


def make(swarm, role, *flags):
    done = swarm.skerry("tokens", "--new", role, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def join(swarm, name, token):
    swarm.worker_token = token
    return swarm.worker(name)


def test_a_token_that_is_used_up_still_holds_its_workers(swarm):
    token = make(swarm, "worker", "--name", "spot", "--uses", "1", "--expires", "1h")
    join(swarm, "first", token)
    here(swarm, "first")
    assert workers(swarm)["first"]["has_key"]
    assert tokens(swarm)["spot"]["uses"] == 1 and 0 < tokens(swarm)["spot"]["left_ms"] <= 3600e3
    late = join(swarm, "late", token)
    assert late.wait(HANGS) == REFUSED
    assert "'spot' is used up" in swarm.log("late")
    before = workers(swarm)["first"]["id"]
    swarm.kill("first")
    swarm.kill("coordinatord")
    swarm.coordinator()
    join(swarm, "first", token)
    here(swarm, "first")
    assert workers(swarm)["first"]["id"] == before, "its key is known after both were started anew"
    # Whoever copies the identity alone is somebody else, and is told so.
    copy = os.path.join(swarm.folder, "work-copy")
    os.makedirs(copy, 0o700)
    shutil.copy(os.path.join(swarm.folder, "work-first", "identity"), copy)
    thief = join(swarm, "copy", swarm.read("worker.token"))
    assert thief.wait(HANGS) == REFUSED
    assert "another key" in swarm.log("copy")
    here(swarm, "first")


def test_revoking_a_token_cuts_its_workers_at_once_and_nobody_else(swarm):
    mine = swarm.worker_token
    spot = make(swarm, "worker", "--name", "spot")
    swarm.worker("stays")
    job = swarm.submit(rounds=100000, steps=4, replicas=2)
    cut = join(swarm, "goes", spot)
    swarm.worker_token = mine
    wait_until(lambda: workers(swarm).get("goes", {}).get("task_kind") == "train", 60, "the worker to train")
    listed = swarm.skerry("tokens").stdout
    assert "spot" in listed and spot not in listed
    done = swarm.skerry("revoke", "spot")
    assert done.returncode == 0, done.stderr
    again = swarm.skerry("revoke", "spot")
    assert again.returncode == 1 and "the token 'spot' was revoked before" in again.stderr
    assert cut.wait(HANGS) == REFUSED
    assert "was revoked" in swarm.log("goes")
    gone = workers(swarm)["goes"]
    assert gone["state"] == "left" and gone["revoked"] and gone["task"] is None
    assert join(swarm, "goes", spot).wait(HANGS) == REFUSED
    assert join(swarm, "goes", mine).wait(HANGS) == REFUSED, "its key counts for nothing, whatever token it brings"
    assert join(swarm, "other", spot).wait(HANGS) == REFUSED
    at = swarm.job(job)["round"]
    swarm.wait_round(job, at + 2)
    swarm.kill("coordinatord")
    swarm.coordinator()
    assert join(swarm, "goes", mine).wait(HANGS) == REFUSED, "after a restart, too"
    here(swarm, "stays")


def test_a_revoked_worker_is_cut(swarm):
    cut = swarm.worker("one")
    here(swarm, "one")
    assert swarm.skerry("revoke", "worker:77").returncode == 1
    done = swarm.skerry("revoke", f"worker:{workers(swarm)['one']['id']}", "--json")
    assert done.returncode == 0, done.stderr
    assert cut.wait(HANGS) == REFUSED
    assert "revoked by an operator" in swarm.log("one")
    assert workers(swarm)["one"]["revoked"]


def test_workers_at_once(swarm):
    token = make(swarm, "worker", "--name", "few", "--workers", "1")
    join(swarm, "a", token)
    here(swarm, "a")
    waits = join(swarm, "b", token)
    wait_until(lambda: "allows 1 worker at once" in swarm.log("b"), 20, "the second to be told")
    assert waits.poll() is None, "it waits"
    here(swarm, "a")


def viewer(swarm, token):
    session = swarm.stranger()
    session.headers["Authorization"] = f"Bearer {token}"
    return session


def test_a_viewer_looks_and_does_nothing_until_it_is_revoked(swarm):
    token = make(swarm, "viewer", "--name", "prometheus")
    swarm.worker("one")
    job = swarm.submit(rounds=2, sample_every=1)
    done = swarm.wait_job(job, "done")
    eye = viewer(swarm, token)
    for path in ("/metrics", "/v1/status", f"/v1/jobs/{job}", "/v1/workers", f"/v1/jobs/{job}/metrics"):
        assert eye.get(swarm.url + path, timeout=HANGS).status_code == 200, path
    picture, weights = done["samples"][0]["blob"], done["modules"][0]["sha256"]
    assert eye.get(f"{swarm.url}/v1/blobs/{picture}", timeout=HANGS).status_code == 200
    kept = eye.get(f"{swarm.url}/v1/blobs/{weights}", timeout=HANGS)
    assert kept.status_code == 403 and "a token of the role viewer may not read this blob" in kept.text, kept.text
    assert swarm.get(f"/v1/blobs/{weights}").status_code == 200
    for path in (f"/v1/jobs/{job}/sample", "/v1/tokens", "/v1/workers/1/drain", "/v1/uploads", "/v1/tokens/1/revoke"):
        refused = eye.post(swarm.url + path, json={}, timeout=HANGS)
        assert refused.status_code == 403, path
        assert "takes a token of role operator; yours has the role viewer" in refused.text, refused.text
    assert eye.get(swarm.url + "/v1/tokens", timeout=HANGS).status_code == 403
    asked = skerry("status", env={"SKERRY_TOKEN": token})
    assert asked.returncode == 0, asked.stderr
    sent = skerry("submit", os.path.join(swarm.folder, "job", "job.yaml"), env={"SKERRY_TOKEN": token})
    # By the command itself: the coordinator is asked once all data has been cut into shards.
    assert sent.returncode == 3 and "submitting needs a token of role operator; yours has the role viewer" in sent.stderr, sent.stderr
    # A page that is open, and a stream under way.
    page = swarm.stranger()
    page.get(swarm.url + "/", params={"token": token}, timeout=HANGS)
    assert page.get(swarm.url + "/v1/status", timeout=HANGS).status_code == 200
    with eye.get(swarm.url + "/v1/events", stream=True, timeout=HANGS) as stream:
        assert swarm.skerry("revoke", "prometheus").returncode == 0
        with pytest.raises((requests.RequestException, StopIteration)):
            lines = stream.iter_lines(chunk_size=1)
            while True:
                next(lines)
    assert viewer(swarm, token).get(swarm.url + "/metrics", timeout=HANGS).status_code == 401
    assert page.get(swarm.url + "/v1/status", timeout=HANGS).status_code == 401
    assert skerry("status", env={"SKERRY_TOKEN": token}).returncode == 3


def test_a_viewers_token_ends(swarm):
    for life in (2, 8, 32):  # seconds, of which a busy machine may need more to ask once
        begun, name = time.monotonic(), f"short-{life}"
        token = make(swarm, "viewer", "--name", name, "--expires", f"{life}s")
        eye = viewer(swarm, token)
        if eye.get(swarm.url + "/v1/status", timeout=HANGS).status_code == 200:
            break
        assert time.monotonic() - begun >= life, "it has ended too soon"
    wait_until(lambda: eye.get(swarm.url + "/v1/status", timeout=HANGS).status_code == 401, 20, "its end")
    assert time.monotonic() - begun >= life
    assert tokens(swarm)[name]["state"] == "ended"
    swarm.token = token
    refused = swarm.skerry("status")
    assert refused.returncode == 3 and "run `skerry login @FILE` with one that is valid" in refused.stderr, refused.stderr


def test_the_first_tokens_are_revoked_like_any_other(swarm):
    second = make(swarm, "operator", "--name", "second")
    assert swarm.skerry("revoke", "user.token").returncode == 1, "nobody shuts himself out"
    swarm.session.headers["Authorization"] = f"Bearer {second}"
    first, swarm.token = swarm.token, second
    assert swarm.skerry("revoke", "user.token").returncode == 0
    assert swarm.skerry("revoke", "worker.token").returncode == 0
    for name in ("user.token", "worker.token"):
        assert not os.path.exists(os.path.join(swarm.data, name))
    assert skerry("status", env={"SKERRY_TOKEN": first}).returncode == 3
    assert swarm.worker("one").wait(HANGS) == REFUSED
    assert viewer(swarm, second).get(swarm.url + "/v1/status", timeout=HANGS).status_code == 200
    swarm.kill("coordinatord", signal.SIGTERM)
    swarm.coordinator(serves=False)
    wait_until(lambda: swarm.log("coordinatord").count(" is ready at ") == 2, 20, "the second start")
    told = [line for line in swarm.log("coordinatord").splitlines() if " is ready at " in line]
    assert "user.token there" in told[0] and ".token" not in told[1], "files that are not there are not named"


def arguments(pid):
    return open(f"/proc/{pid}/cmdline", "rb").read().decode().split("\0")


def test_tokens_do_not_stay_on_command_lines(swarm, tmp_path):
    worker = swarm.worker("argv")
    here(swarm, "argv")
    assert swarm.worker_token not in arguments(worker.pid)
    piped = subprocess.Popen([f"{BIN}/workerd", "--join", "-", "--name", "piped", "--device", "cpu", "--threads", "1",
                              "--work-dir", str(tmp_path / "piped")], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    swarm.processes["piped"] = piped
    open(os.path.join(swarm.logs, "piped.log"), "w").close()
    piped.stdin.write(swarm.worker_token.encode() + b"\n")
    piped.stdin.close()
    here(swarm, "argv", "piped")
    env = {"XDG_CONFIG_HOME": str(tmp_path), "SKERRY_TOKEN": ""}
    assert skerry("login", "-", env=env, input=swarm.token).returncode == 0
    assert skerry("status", env=env).returncode == 0


@pytest.mark.parametrize("args, code, words", [
    (["tokens", "--uses", "3"], 2, "need --new"),  # a wrong command line
    (["tokens", "--new", "root"], 2, "expected worker, operator or viewer"),
    (["tokens", "--new", "viewer", "--uses", "3"], 1, "limit a worker's token"),
    (["tokens", "--new", "worker", "--name", "a b"], 1, "expected up to"),
    (["revoke", "nobody"], 1, "there is no token 'nobody'"),
    (["revoke", "worker:x"], 1, "there is no worker 'x'"),
])
def test_wrong_orders_are_explained(swarm, args, code, words):
    done = swarm.skerry(*args)
    assert done.returncode == code and words in done.stderr, done.stderr


def test_a_token_that_ends_at_once_is_refused(swarm):
    done = swarm.skerry("tokens", "--new", "worker", "--expires", "0")
    assert done.returncode == 2 and "from 1s to 36500d" in done.stderr, done.stderr


def test_who_lost_every_operator_token_gets_a_new_one_and_the_lost_one_counts_for_nothing(swarm):
    swarm.worker("stays")
    here(swarm, "stays")
    lost = swarm.token
    swarm.kill("coordinatord")
    for name in ("user.secret", "worker.secret"):
        os.remove(os.path.join(swarm.data, name))
    swarm.coordinator()
    assert swarm.token != lost and swarm.get("/v1/status").status_code == 200
    assert viewer(swarm, lost).get(swarm.url + "/v1/status", timeout=HANGS).status_code == 401
    tokens = swarm.get("/v1/tokens").json()["items"]
    names = [t["name"] for t in tokens if t["state"] != "revoked"]
    assert len(set(names)) == len(names) == 3 and {"user.token", "worker.token"} < set(names), tokens
    here(swarm, "stays")  # who joined by a token whose file is lost goes on by its own key
    swarm.kill("coordinatord")
    swarm.coordinator()
    assert "has ended" not in swarm.log("coordinatord"), "what is revoked has not ended, and old ends are no news"


def test_a_name_that_was_guessed_is_said(tmp_path):
    rpc, http = free_ports(2)
    for more, said in ([], True), (["--host", "127.0.0.1"], False):
        daemon = subprocess.Popen([f"{BIN}/coordinatord", "--data-dir", str(tmp_path), "--rpc-port", str(rpc), "--http-port", str(http),
                                   *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        wait_until(lambda: select.select([daemon.stdout], [], [], 0)[0], 20, "it to be ready")
        daemon.terminate()
        told = daemon.communicate(timeout=HANGS)[0]
        assert "is ready at" in told and ("--host NAME" in told) == said, told
