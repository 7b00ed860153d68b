"""Audits of real jobs: they confirm records that are true, to the bit, and name those that are not."""
import json
import os
import re
import signal
import sqlite3

import pytest

from common import skerry, wait_until, write_job
from swarm import swarm  # noqa: F401  (fixture)

RESULT = re.compile(r"(good|FAULTY): (\d+) files? of .*, (\d+) versions?, (\d+) of them .*, (\d+) outer steps? folded again, (\d+) faults?\b")


def audit(swarm, job):
    done = skerry("audit", job, "--data-dir", swarm.data)
    assert done.returncode in (0, 1), done.stderr
    found = RESULT.search(done.stdout)
    assert found, done.stdout + done.stderr
    word, *numbers = found.groups()
    assert (word == "good") == (done.returncode == 0), done.stdout
    return done.stdout, dict(zip(("files", "versions", "deltas", "steps", "faults"), map(int, numbers)))


def audit_until(swarm, job, steps):
    """Audits until so many steps were made again: a slow audit may find that the versions before them are gone."""
    def found():
        told, n = audit(swarm, job)
        assert n["faults"] == 0, told
        return n if n["steps"] >= steps else None
    return wait_until(found, 60, f"an audit with {steps} steps made again")


def two_workers(swarm):
    swarm.worker("a")
    swarm.worker("b")


@pytest.mark.parametrize("keys", [
    dict(up="e3m0", down="e3m0", momentum=0.9, ema=0.5),
    dict(up="f32", down="f32", momentum=0.9, ema=0.9),
    dict(up="f32", down="e3m0", momentum=0, ema=0),
])
def test_a_job_at_work_is_as_recorded(swarm, keys):
    two_workers(swarm)
    job = swarm.submit(rounds=400, steps=100, replicas=2, **keys)
    swarm.wait_round(job, 6)
    n = audit_until(swarm, job, 1)
    assert n["versions"] == 4 and n["deltas"] == 3, n
    # Its first versions, of which everything is still there, start from no state.
    swarm.wait_round(job, 8)
    assert audit(swarm, job)[1]["faults"] == 0


def test_a_job_that_was_rolled_back_is_as_recorded(swarm):
    two_workers(swarm)
    job = swarm.submit(rounds=400, steps=100, replicas=2, up="e3m0", down="e3m0", momentum=0.9, ema=0.5)
    swarm.wait_round(job, 5)
    refused = swarm.skerry("rollback", job, "--to", "0")
    assert refused.returncode == 1 and re.search(r"module \d+ keeps versions \d+ to \d+, not 0", refused.stderr), refused.stderr
    for name in "ab":  # meanwhile no round makes the version go
        swarm.kill(name, signal.SIGSTOP)
    wait_until(lambda: not swarm.folds(), 30, "steps under way to be made")
    at = swarm.job(job)["round"]
    done = swarm.skerry("rollback", job, "--to", at - 1)
    assert f"job {job} is what it was after round {at - 1}" in done.stdout, done.stderr
    for name in "ab":
        swarm.kill(name, signal.SIGCONT)
    left = next(r["round"] for r in swarm.job(job)["history"] if r["contributions"] == 0)
    swarm.wait_round(job, swarm.job(job)["round"] + 2)
    fetched = {r["round"]: r["bytes_down"] for r in swarm.job(job)["history"]}
    assert fetched[left - 1] > 0 and fetched[left + 1] == 0, "who has the version fetches nothing"
    assert audit_until(swarm, job, 1)["versions"] == 4


def test_the_balance_of_a_job_that_is_done(swarm):
    two_workers(swarm)
    job = swarm.submit(rounds=3, steps=4, replicas=2)
    swarm.wait_job(job, "done")
    told, n = audit(swarm, job)
    assert n["faults"] == 0 and n["versions"] == 4 and n["deltas"] == 3, told
    done = re.search(r"(\d+) done, (\d+) leased, (\d+) pending; folded in 3 rounds: (\d+), reported and not folded yet: (\d+)", told)
    settled, leased, _, folded, reported = map(int, done.groups())
    assert settled == folded == 3 * 2 * 4 * 8 and leased == reported == 0, told
    assert skerry("audit", 99, "--data-dir", swarm.data).returncode == 1
    assert "does not exist" in skerry("audit", 99, "--data-dir", swarm.data).stderr
    assert "say with --data-dir where it is" in skerry("audit", 99, "--data-dir", swarm.data + "/nowhere").stderr


def test_the_balance_of_a_job_that_goes_on(swarm):
    for name in "ab":
        swarm.worker(name, "--throttle", "20")
    job = swarm.submit(rounds=2, steps=2000, replicas=2)  # longer than an audit: 40 s
    wait_until(lambda: sum(t["steps_done"] > 0 for t in swarm.get(f"/v1/tasks?job={job}&state=leased").json()["items"]) == 2,
               30, "both to train")
    told, n = audit(swarm, job)
    assert n["faults"] == 0, told
    assert f" {2 * 2000 * 8} leased, " in told, told


@pytest.mark.parametrize("old, new, steps", [
    ("recipe: {name: diloco, replicas: 2}", "recipe: {name: dipaco, levels: [2, 1]}", 2),  # the norm of a mean is kept
    ("outer: {", "outer: {async: true, ", 1),  # the momentum is delayed, contributions are older than what they go into
])
def test_other_ways_of_folding(swarm, old, new, steps):
    two_workers(swarm)
    path = write_job(tmp_job(swarm), rounds=300, steps=100, replicas=2)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert old in text
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new))
    job = swarm.submit(path)
    wait_until(lambda: all((m["version"] or 0) >= 6 for m in swarm.job(job)["modules"]), 60, "versions")
    audit_until(swarm, job, steps)


def tmp_job(swarm):
    folder = os.path.join(swarm.folder, "job")
    os.makedirs(folder)
    return folder


def newest(swarm, job):
    return swarm.job(job)["modules"][0]["sha256"]


def flip(path):
    raw = bytearray(open(path, "rb").read())
    raw[len(raw) // 2] ^= 1
    os.chmod(path, 0o600)
    open(path, "wb").write(raw)


def test_what_is_not_as_recorded_is_named(swarm):
    two_workers(swarm)
    job = swarm.submit(rounds=400, steps=3, replicas=2)
    swarm.wait_round(job, 5)
    swarm.kill("coordinatord")
    assert audit(swarm, job)[1]["faults"] == 0
    db = sqlite3.connect(os.path.join(swarm.data, "coordinator.db"))
    version, text = db.execute("SELECT version, provenance FROM versions ORDER BY version DESC LIMIT 1").fetchone()
    was = json.loads(text)

    def forged(change):
        record = json.loads(text)
        change(record)
        db.execute("UPDATE versions SET provenance=? WHERE version=?", (json.dumps(record), version))
        db.commit()
        told, n = audit(swarm, job)
        db.execute("UPDATE versions SET provenance=? WHERE version=?", (text, version))
        db.commit()
        assert n["faults"] > 0, told
        return told

    # One contribution left out, another weight, another rate: the step gives other bytes.
    assert "gives the version other bytes" in forged(lambda r: r["contributions"][0].update(refused=True))
    assert "gives the version other bytes" in forged(lambda r: r["contributions"][0].update(weight=1 + 2 * was["contributions"][0]["weight"]))
    assert "gives the version other bytes" in forged(lambda r: r.update(lr=was["lr"] * 1.5))
    assert "gives the momentum other bytes" in forged(lambda r: r.update(momentum=0.5))
    assert "did not come from" in forged(lambda r: r["base_full"].update(sha256="0" * 64))
    assert "not what its provenance says" in forged(lambda r: r["full"].update(sha256="0" * 64))
    db.close()
    # And files.
    name = was["contributions"][0]["sha256"]
    flip(os.path.join(swarm.data, "blobs", name[:2], name))
    told, n = audit(swarm, job)
    assert n["faults"] > 0 and name in told


def test_a_damaged_version_is_found_while_the_job_goes_on(swarm):
    two_workers(swarm)
    job = swarm.submit(rounds=400, steps=3, replicas=2)
    swarm.wait_round(job, 4)
    swarm.kill("a")
    swarm.kill("b")  # the versions stay as they are
    swarm.wait_lost()
    name = newest(swarm, job)
    flip(os.path.join(swarm.data, "blobs", name[:2], name))
    told, n = audit(swarm, job)
    assert f"{name} is damaged" in told and n["faults"] == 1, "its delta makes it again, and its hash is as recorded"
