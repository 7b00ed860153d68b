"""A phase goes on from the last snapshot of its lost worker: another worker trains the rest."""
import glob
import os
import re
import signal

import pytest

from common import wait_until, write_job
from swarm import running, swarm  # noqa: F401  (fixture)
from test_device import FAULTY
from test_faults import epochs_add_up, samples_seen, task_of, worker_state

STEPS, BATCH = 300, 2
LONG = dict(dim=32, depth=2, batch=BATCH, steps=STEPS, images=900, replicas=1)  # a phase fits into an epoch
SLOWLY = ("--throttle", "40")  # for whoever will be lost: some seconds, so that there is something to lose


def submit(swarm, snapshot, more="", **keys):
    """Submits a job with at least so many seconds between snapshots."""
    path = write_job(swarm.folder, **{**LONG, "rounds": 1, **keys})
    text = open(path, encoding="utf-8").read().replace("outer: {", f"outer: {{snapshot: {snapshot}, ")
    open(path, "w", encoding="utf-8").write(text + more)
    return swarm.submit(path)


def phase(swarm):
    """The training task, once the job has one."""
    tasks = [t for t in swarm.get("/v1/tasks").json()["items"] if t["kind"] == "train"]
    return tasks[0] if tasks else None


def resumed_at(swarm, name):
    found = re.findall(r"going on at step (\d+) of a phase", swarm.log(name))
    return int(found[-1]) if found else None


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM])
def test_another_worker_goes_on(swarm, signo):
    swarm.worker("a", *SLOWLY)
    job = submit(swarm, 0.3)
    saved = wait_until(lambda: (phase(swarm) or {}).get("saved_steps"), 60, "a first snapshot")
    wait_until(lambda: phase(swarm)["saved_steps"] > saved, 60, "a second one")
    done = phase(swarm)["steps_done"]
    if signo == signal.SIGTERM:  # schedulers say it more than once
        swarm.processes["a"].send_signal(signo)
        wait_until(lambda: "leaving: terminated" in swarm.log("a"), 20, "the first signal to be heard")
    swarm.kill("a", signo)
    wait_until(lambda: worker_state(swarm, "a") in ("lost", "left"), 20, "all that it had sent to be there")
    kept = phase(swarm)["saved_steps"]
    swarm.worker("b")
    assert wait_until(lambda: phase(swarm)["steps_done"], 60, "steps of the successor") > kept, "those that were kept count"
    swarm.wait_job(job, "done")
    at = resumed_at(swarm, "b")
    assert at == kept >= saved
    if signo == signal.SIGTERM:
        assert at >= done, "what was done is sent before it leaves"
    assert f"train steps={STEPS} samples={STEPS * BATCH} " in swarm.log("b"), "a whole phase in the end"
    epochs_add_up(swarm.job(job))
    assert samples_seen(swarm.job(job)) == STEPS * BATCH, "each sample is counted once"


def test_a_worker_that_is_killed_while_it_sends_makes_no_step_again(swarm):
    swarm.worker("a", *SLOWLY)
    job = submit(swarm, 0, steps=400)  # far more than between two heartbeats
    wait_until(lambda: (phase(swarm) or {}).get("steps_done", 0) > 10, 60, "some steps")
    swarm.kill("coordinatord", signal.SIGSTOP)  # so that nobody takes the result
    wait_until(lambda: glob.glob(os.path.join(swarm.folder, "work-a", "state-*", "replica-*.end")), 60, "the end of the phase")
    swarm.kill("a")
    swarm.kill("coordinatord", signal.SIGCONT)
    swarm.worker("a")
    swarm.wait_job(job, "done")
    assert resumed_at(swarm, "a") == 400
    assert samples_seen(swarm.job(job)) == 400 * BATCH, "each sample is counted once"


@pytest.mark.parametrize("grace, saves", [("60s", True), ("2s", False)])
def test_a_slow_link_is_no_hung_device(swarm, grace, saves):
    """The last snapshot may take longer than a worker waits for a device that hangs, if that is no longer than it may take to leave."""
    swarm.worker("a", "--max-bandwidth", "200kbit", "--grace", grace, *SLOWLY, bin=FAULTY, env={"SKERRY_FAULT_HUNG_MS": "1000"})
    submit(swarm, 600, images=200)
    done = wait_until(lambda: (phase(swarm) or {}).get("steps_done"), 60, "some steps")
    assert swarm.kill("a", signal.SIGTERM) == 0, swarm.tail("a")
    assert "hangs" not in swarm.log("a")
    assert phase(swarm)["saved_steps"] >= done if saves else phase(swarm)["saved_steps"] == 0


def test_snapshots_outlive_the_coordinator(tmp_path):
    with running(tmp_path, "--lease", "6s", "--heartbeat", "500ms") as swarm:
        outlive(swarm)


def outlive(swarm):
    swarm.worker("a", *SLOWLY)
    job = submit(swarm, 0.3)
    wait_until(lambda: (phase(swarm) or {}).get("saved_steps"), 60, "a snapshot")
    swarm.kill("a")
    wait_until(lambda: worker_state(swarm, "a") == "lost", 20, "all that it had sent to be there")
    kept = phase(swarm)["saved_steps"]
    swarm.kill("coordinatord")
    swarm.coordinator("--lease", "6s", "--heartbeat", "500ms")
    assert phase(swarm)["saved_steps"] == kept > 0
    swarm.worker("b")
    swarm.wait_job(job, "done")
    assert resumed_at(swarm, "b") == kept
    assert not [t for t in swarm.get("/v1/tasks").json()["items"] if t["saved_steps"]], "an ended phase has none"


@pytest.mark.parametrize("how", ["snapshot: 0, ", "fragments: 2, delay: 5, "])
def test_without_snapshots_a_phase_begins_anew(swarm, how):
    swarm.worker("a", *SLOWLY)
    path = write_job(swarm.folder, **{**LONG, "rounds": 1})
    text = open(path, encoding="utf-8").read().replace("outer: {", "outer: {" + how)
    open(path, "w", encoding="utf-8").write(text)
    job = swarm.submit(path)
    wait_until(lambda: (phase(swarm) or {}).get("steps_done", 0) > 20, 60, "some steps")
    assert swarm.kill("a", signal.SIGTERM) == 0
    assert worker_state(swarm, "a") == "left" and phase(swarm)["saved_steps"] == 0
    swarm.worker("b")
    swarm.wait_job(job, "done")
    assert resumed_at(swarm, "b") is None


def test_without_rounds_a_phase_goes_on_from_its_own_version(swarm):
    """Other workers make versions meanwhile: the successor begins with the version that the snapshot is a difference from."""
    swarm.worker("a", *SLOWLY)
    swarm.worker("b", *SLOWLY)
    path = write_job(swarm.folder, **{**LONG, "rounds": 3, "steps": 100, "replicas": 2})
    text = open(path, encoding="utf-8").read().replace("outer: {", "outer: {async: true, snapshot: 0.2, ")
    open(path, "w", encoding="utf-8").write(text)
    job = swarm.submit(path)
    wait_until(lambda: task_of(swarm, "a") and task_of(swarm, "b") and swarm.job(job)["round"] >= 1, 60, "versions to come")

    def saved():  # of whichever phase it has: one may end before it has a snapshot
        task = task_of(swarm, "b")
        return task and swarm.get(f"/v1/tasks/{task}").json()["saved_steps"]
    wait_until(saved, 60, "a snapshot")
    swarm.kill("b")
    swarm.worker("c")
    swarm.wait_job(job, "done")
    assert samples_seen(swarm.job(job)) == 3 * 2 * 100 * BATCH


def test_what_is_kept_of_an_ended_job_goes(swarm):
    """A worker that serves one job after the other keeps only the state of jobs that go on."""
    swarm.worker("a")
    kept = lambda job: glob.glob(os.path.join(swarm.folder, "work-a", "state-*", f"re*-{job}-*"))  # noqa: E731
    path = write_job(swarm.folder, **{**LONG, "rounds": 2, "steps": 5})
    first = swarm.submit(path)
    wait_until(lambda: kept(first), 60, "the state of a phase")
    swarm.wait_job(first, "done")
    second = swarm.submit(path)
    swarm.wait_job(second, "done")
    wait_until(lambda: not kept(first), 60, "the ended job's state to go")
