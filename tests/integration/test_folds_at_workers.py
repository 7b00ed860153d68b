"""Outer steps that workers make: they have the bits of the coordinator's, also when workers are lost."""
import os
import re
import signal

import pytest

from common import wait_until, write_job
from swarm import swarm  # noqa: F401  (fixture)
from test_audit import audit_until
from test_faults import epochs_add_up

GIVEN = re.compile(r"OUTER task (\d+) of job \d+ leased worker=(\d+) attempt=(\d+)")


DILOCO = "recipe: {name: diloco, replicas: 2}"
SHARED = "recipe: {name: dipaco, levels: [2, 1]}"  # two paths share a module


def submit(swarm, where, recipe=DILOCO, **keys):
    folder = os.path.join(swarm.folder, "job")
    os.makedirs(folder, exist_ok=True)
    path = write_job(folder, data=not os.path.isdir(os.path.join(folder, "data")), **keys)
    text = open(path, encoding="utf-8").read().replace("outer: {", f"outer: {{where: {where}, ", 1)
    assert DILOCO in text or keys.get("replicas")
    text = text.replace(DILOCO, recipe)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return swarm.submit(path)


def given(swarm):
    """(task, worker, attempt) of the outer steps that workers got."""
    return [tuple(map(int, m)) for m in GIVEN.findall(swarm.log("coordinatord"))]


def made(swarm, job):
    return [(m["version"], m["sha256"]) for m in swarm.job(job)["modules"]]


def nobody_failed(swarm):
    workers = swarm.get("/v1/workers").json()["items"]
    assert all(w["tasks_failed"] == 0 for w in workers), workers


@pytest.mark.parametrize("keys", [
    dict(up="e3m0", down="e3m0", momentum=0.9, ema=0.5),
    dict(up="f32", down="int8", momentum=0.9, ema=0),
    dict(up="bf16", down="f32", momentum=0, ema=0.9),
    dict(up="e3m0", down="e3m0", momentum=0.9, ema=0.5, recipe=SHARED),
])
def test_same_bits(swarm, keys):
    """Versions and the state for the next ones are those that the coordinator makes; an audit can make such a step again."""
    for name in "ab":
        swarm.worker(name)
    swarm.joined("a", "b")
    results = []
    for where in ("coordinator", "worker"):
        before = len(given(swarm))
        job = submit(swarm, where, rounds=5, **keys)
        swarm.wait_job(job, "done")
        epochs_add_up(swarm.job(job))
        results.append(made(swarm, job))
        assert len(given(swarm)) - before == (5 * len(results[0]) if where == "worker" else 0)
    assert results[0] == results[1] and all(version == 5 for version, _ in results[0]), results
    if len(results[0]) == 1:  # nothing else keeps who has the state
        assert len({worker for _, worker, _ in given(swarm)}) == 1, given(swarm)
    assert "made by the coordinator, too" not in swarm.log("coordinatord")
    nobody_failed(swarm)


def test_at_work(swarm):
    """Steps of workers leave everything that the next step needs: audits make them again, a new coordinator goes on, and no step is
    made after the job's end."""
    for name in "ab":
        swarm.worker(name)
    job = submit(swarm, "worker", rounds=100000, steps=20)
    swarm.wait_round(job, 4)
    audit_until(swarm, job, 1)
    swarm.kill("coordinatord")
    swarm.coordinator()
    n = len(given(swarm))
    swarm.wait_round(job, swarm.job(job)["round"] + 4)
    assert len(given(swarm)) >= n + 3
    audit_until(swarm, job, 1)
    assert swarm.skerry("cancel", job).returncode == 0
    assert not swarm.get(f"/v1/tasks?job={job}&state=leased").json()["items"], "nobody goes on with a step of it"
    nobody_failed(swarm)


def test_the_worker_is_lost(swarm):
    """A worker is killed while it folds: another one makes the same step, and the bits are those of a calm job."""
    for name in "ab":
        swarm.worker(name)
    swarm.joined("a", "b")
    calm = submit(swarm, "coordinator", rounds=3, dim=64)
    swarm.wait_job(calm, "done")
    for name in "ab":  # a step takes seconds
        swarm.kill(name)
        swarm.worker(name, "--max-bandwidth", "4Mbit")
    swarm.joined("a", "b")
    job = submit(swarm, "worker", rounds=3, dim=64)
    task, worker, attempt = wait_until(lambda: given(swarm), 60, "an outer step to be given")[0]
    names = {w["id"]: w["name"] for w in swarm.get("/v1/workers").json()["items"]}
    swarm.kill(names[worker])
    again = wait_until(lambda: [g for g in given(swarm) if g[0] == task and g[2] > attempt], 60, "the step to be given again")[0]
    assert again[1] != worker
    # Whoever goes on alone does the other's phase, too, without its moments: it is held until both are here.
    swarm.kill(names[again[1]], signal.SIGSTOP)
    swarm.worker(names[worker])
    swarm.joined(names[worker])
    swarm.kill(names[again[1]], signal.SIGCONT)
    swarm.wait_job(job, "done")
    epochs_add_up(swarm.job(job))
    assert made(swarm, job) == made(swarm, calm)


def test_nobody_can(swarm):
    """If no worker is left to fold, the coordinator does."""
    swarm.worker("a", "--max-bandwidth", "4Mbit")
    job = submit(swarm, "worker", rounds=1, dim=64, replicas=1)
    wait_until(lambda: given(swarm), 60, "an outer step to be given")
    swarm.kill("a")
    wait_until(lambda: made(swarm, job)[0][0] == 1, 60, "the coordinator to fold")
