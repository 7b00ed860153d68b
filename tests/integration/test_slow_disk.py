"""A disk that takes seconds for a commit: requests without a commit go on, and no answer is sent before it is durable.

coordinatord of these tests can stall on purpose (a build with sanitizers, `make faulty`): a commit ends when the file SKERRY_FAULT_COMMIT is gone."""
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from common import wait_until
from swarm import running

FAULTY = os.path.abspath(os.path.join(os.environ.get("SKERRY_BUILD", "build"), "clang/asan/bin"))
LONG = dict(dim=128, depth=6, batch=8, steps=100, images=1600, replicas=1, rounds=3)
STALL_S = 10  # more than two leases


class Gate:
    """Opens and shuts the disk: commits wait while it is shut."""

    def __init__(self, path):
        self.path = str(path)

    def shut(self):
        with open(self.path, "w", encoding="utf-8"):
            pass

    def open(self):
        if os.path.exists(self.path):
            os.remove(self.path)


@pytest.fixture
def stalling(tmp_path):
    """A swarm with short leases, and the gate of its disk."""
    gate = Gate(tmp_path / "no-commits")
    with running(tmp_path, "--heartbeat", "200ms", "--lease", "4s", bin=FAULTY, env={"SKERRY_FAULT_COMMIT": gate.path}) as s:
        yield s, gate
        gate.open()


def fast(swarm, path):
    """Gets a path, which must not wait for the disk: while the gate is shut, nobody else would open it."""
    answer = swarm.get(path)
    assert answer.status_code == 200, answer.text
    return answer


def slow_status(swarm, seconds):
    """The status, once it reports a commit that has been under way for so long."""
    def says():
        status = fast(swarm, "/v1/status").json()
        return status if status["store"]["writing_ms"] >= 1000 * seconds else None
    return wait_until(says, seconds + 20, f"a commit of {seconds} s in the status")


def heartbeat_ages(swarm):
    return [float(x) for x in re.findall(r"^skerry_worker_heartbeat_age_seconds\{.*\} (\S+)$", fast(swarm, "/metrics").text, re.M)]


def test_a_commit_of_seconds_costs_no_lease(stalling):
    swarm, gate = stalling
    swarm.worker("a")
    done = swarm.submit(rounds=1, steps=2, replicas=1)
    swarm.wait_job(done, "done")
    job = swarm.submit(**LONG)
    wait_until(lambda: any(w["task"] for w in swarm.get("/v1/workers").json()["items"]), 30, "a lease")
    fast(swarm, "/v1/status")
    with ThreadPoolExecutor() as others:
        gate.shut()
        try:
            made = others.submit(swarm.post, "/v1/tokens", {"role": "viewer", "name": "late"})
            listed = others.submit(swarm.get, "/v1/tokens")
            status = slow_status(swarm, STALL_S)
            assert status["store"]["ok"]
            assert "has been under way for" in status["waiting_for"][0]["why"]
            assert fast(swarm, f"/v1/jobs/{done}").json()["state"] == "done"
            assert fast(swarm, f"/v1/jobs/{done}/metrics").text
            assert fast(swarm, "/v1/log").json()["items"]
            assert fast(swarm, "/healthz").text == "ok\n"
            wait_until(lambda: [age < 1 for age in heartbeat_ages(swarm)] == [True], 20, "the worker to be heard in the midst of it")
            assert not made.done(), "what is not durable is not acknowledged"
        finally:
            gate.open()
        assert made.result().status_code == 201
        assert listed.result().status_code == 200
    swarm.wait_job(job, "done")
    told = [x["text"] for x in swarm.get("/v1/log").json()["items"]]
    assert not [x for x in told if "lost" in x], told
    attempts = [t["attempt"] for t in swarm.get(f"/v1/tasks?job={job}").json()["items"]]
    assert attempts and set(attempts) <= {0, 1}, "no phase was taken from its worker"


def test_what_was_read_in_a_stall_is_there_after_a_kill(stalling):
    swarm, gate = stalling
    swarm.worker("a")
    job = swarm.submit(**{**LONG, "rounds": 100000, "steps": 4})
    swarm.wait_round(job, 2)
    before = swarm.job(job)
    fast(swarm, "/v1/status")
    with ThreadPoolExecutor() as others:
        gate.shut()
        made = others.submit(swarm.post, "/v1/tokens", {"role": "viewer", "name": "late"})
        slow_status(swarm, 1.5)
        cancelled = others.submit(swarm.post, f"/v1/jobs/{job}/cancel", {})  # in memory it is, the disk has not heard of it
        asked = others.submit(swarm.get, f"/v1/jobs/{job}")
        status = slow_status(swarm, STALL_S)
        assert status["jobs"][0]["state"] == "running", "what is shown is what was"
        assert not made.done() and not cancelled.done() and not asked.done(), "what is not durable is not told"
        swarm.kill("coordinatord")
        gate.open()
        for answer in (made, cancelled, asked):
            with pytest.raises(requests.RequestException):
                answer.result()
    swarm.coordinator()
    after = swarm.job(job)
    assert after["state"] == "running", "nobody was told that it is cancelled"
    assert after["round"] >= max(before["round"], status["jobs"][0]["round"]), "a round that was shown is never lost"
