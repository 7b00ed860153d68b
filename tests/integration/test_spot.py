"""A machine that is about to be taken back leaves in time, for each source of the notice."""
import os
import re
import stat
import sys

import pytest

from common import HANGS, wait_until, write_job
from metadata import Aws, Azure, Gcp, serving
from swarm import swarm  # noqa: F401  (fixture)
from test_faults import SLOW, task_of, worker_state

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
from shim import Shim  # noqa: E402

NOTICED = 5  # the exit status after a notice


def leaves(swarm, name, seconds=HANGS):
    """(the worker's exit status, within so many seconds; the coordinator's record of the worker after it)."""
    status = swarm.processes[name].wait(seconds)
    return status, worker_state(swarm, name)


@pytest.mark.parametrize("name, service", [("aws", Aws), ("gcp", Gcp), ("azure", Azure), ("auto", Aws), ("auto", Gcp), ("auto", Azure)])
def test_a_notice_of_the_cloud(swarm, name, service):
    with serving(service()) as cloud:
        swarm.worker("a", "--spot", name, "--spot-metadata", cloud.url)
        job = swarm.submit(**{**SLOW, "rounds": 200, "replicas": 1})
        swarm.wait_round(job, 1)
        wait_until(lambda: len(cloud.asked) >= 4, 30, "the metadata service to be asked")
        assert swarm.processes["a"].poll() is None, "nobody has said that it goes"
        cloud.take_back(seconds=29)
        assert leaves(swarm, "a", 29) == (NOTICED, "left"), "before its machine ends"
    assert "leaves in" in swarm.log("coordinatord"), "the notice itself was told"
    swarm.worker("b")
    swarm.wait_round(job, swarm.job(job)["round"] + 1)


def trains_in_long_phases(swarm):
    """The job, when its first step is made, of phases that take 20 s on any machine."""
    path = write_job(swarm.folder, **{**SLOW, "rounds": 200, "replicas": 1})
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("steps: 60, lr", "seconds: 20, lr")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    job = swarm.submit(path)
    wait_until(lambda: any(t["state"] == "leased" and t["steps_done"] for t in swarm.get("/v1/tasks").json()["items"]), 30, "a worker to train")
    return job


def test_long_before_its_end_a_machine_goes_on(swarm):
    """A worker leaves only in the last half minute: two minutes before, its phase goes on, and it takes no other; it also tells a
    coordinator that was started again."""
    with serving(Aws()) as cloud:
        swarm.worker("a", "--spot", "aws", "--spot-metadata", cloud.url)
        job = trains_in_long_phases(swarm)
        before = swarm.job(job)["round"]
        cloud.take_back(seconds=120)
        wait_until(lambda: "leaves in" in swarm.log("coordinatord"), 20, "the notice to be told")
        swarm.kill("coordinatord")
        swarm.coordinator()
        assert leaves(swarm, "a") == (NOTICED, "left")
    assert len(re.findall(r"done task=\d+ train steps=", swarm.log("a"))) == before + 1, "the phase under way, and no other"
    assert swarm.log("coordinatord").count("leaves in") == 2
    assert "leaving: AWS will terminate this instance" in swarm.log("a")


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("service", [Aws, Azure])
def test_the_time_left_is_by_the_clouds_clock(swarm, service, days):
    """That of the machine may be wrong: a day would be no time at all, or far too much."""
    shim = Shim(os.environ.get("SKERRY_BUILD", "build"), swarm.folder + "/shim")
    shim.tell(clock_s=days * 86400)
    with serving(service()) as cloud:
        swarm.worker("a", "--spot", "auto", "--spot-metadata", cloud.url, env=shim.env)
        wait_until(lambda: len(cloud.asked) >= 4 and "has joined" in swarm.log("coordinatord"), 30, "it to join and to ask")
        cloud.take_back(seconds=120)
        assert leaves(swarm, "a", 30) == (NOTICED, "left"), "it has nothing to do"
    assert shim.felt()[1] > 0, "it saw the wrong clock"
    left = float(re.search(r"worker 1 \(a\) leaves in (\d+) s", swarm.log("coordinatord")).group(1))
    assert 60 < left <= 120, left


def test_a_drain_after_a_notice_keeps_the_worker_away(swarm):
    """Whatever starts a worker again after a notice, in case that is withdrawn, must not start one that a person has drained."""
    with serving(Aws()) as cloud:
        swarm.worker("a", "--spot", "aws", "--spot-metadata", cloud.url)
        trains_in_long_phases(swarm)
        cloud.take_back(seconds=120)
        wait_until(lambda: "leaves in" in swarm.log("coordinatord"), 20, "the notice to be told")
        assert swarm.skerry("drain", "a").returncode == 0
        assert leaves(swarm, "a") == (0, "left")


def test_a_file_and_a_program(swarm):
    flag, program = swarm.folder + "/preempted", swarm.folder + "/asks"
    open(program, "w", encoding="utf-8").write(f"#!/bin/sh\ntest -e {flag}\n")
    os.chmod(program, stat.S_IRWXU)
    swarm.worker("a", "--spot", flag)
    swarm.worker("b", "--spot", program)
    wait_until(lambda: len(swarm.get("/v1/workers").json()["items"]) == 2, 30, "both to join")
    open(flag, "w", encoding="utf-8").write("5\n")
    assert leaves(swarm, "a") == (NOTICED, "left")
    assert leaves(swarm, "b") == (NOTICED, "left")
    swarm.worker("a", "--spot", flag)
    assert swarm.processes["a"].wait(HANGS) == NOTICED, "as long as the notice stands"
    os.remove(flag)
    swarm.worker("a", "--spot", flag)
    wait_until(lambda: worker_state(swarm, "a") == "idle", 20, "it to stay where the notice was withdrawn")


def test_wrong_names_and_no_cloud_yet(swarm):
    worker = swarm.worker("a", "--spot", "amazon")
    assert worker.wait(HANGS) == 2 and "expected auto, aws" in swarm.log("a")
    with serving(Aws()) as nobody:
        pass
    swarm.worker("b", "--spot", "auto", "--spot-metadata", nobody.url)
    wait_until(lambda: "no cloud's metadata service answers" in swarm.log("b"), 20, "the search to end")
    wait_until(lambda: swarm.get("/v1/workers").json()["items"], 20, "it to join all the same")
    with serving(Aws(), nobody.port):
        wait_until(lambda: "watching aws" in swarm.log("b"), 20, "it to find the cloud that comes later")


def test_a_drain_survives_restarts(swarm):
    """A drain survives restarts of the worker and of the coordinator, and ends when the worker has left."""
    swarm.worker("a")
    job = swarm.submit(**{**SLOW, "rounds": 200, "replicas": 1, "steps": 600})
    wait_until(lambda: task_of(swarm, "a"), 30, "worker a to hold a lease")
    assert swarm.skerry("drain", 1).returncode == 0
    swarm.kill("coordinatord")
    swarm.kill("a")
    swarm.coordinator()
    swarm.worker("a")
    assert leaves(swarm, "a") == (0, "left")
    assert swarm.job(job)["round"] == 0 and "task=" not in swarm.log("a").split("workerd ")[-1], "it took no other"
    swarm.worker("a")
    wait_until(lambda: task_of(swarm, "a"), 30, "who comes back after a drain to work")
