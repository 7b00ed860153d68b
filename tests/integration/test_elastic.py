"""Rounds have as many phases as there are workers, while workers join and leave (recipe.replicas: auto)."""
from common import wait_until, write_job
from swarm import running, swarm  # noqa: F401  (fixture)
from test_faults import SLOW, epochs_add_up, samples_seen, task_of


def test_workers_come_and_go(swarm):
    swarm.worker("a")
    swarm.worker("b")
    swarm.joined("a", "b")
    path = write_job(swarm.folder, **{**SLOW, "steps": 30, "rounds": 18, "images": 3200})
    text = open(path, encoding="utf-8").read().replace("replicas: 2", "replicas: auto").replace("outer: {", "outer: {snapshot: 0.2, ")
    open(path, "w", encoding="utf-8").write(text)
    job = swarm.submit(path)
    swarm.wait_round(job, 2)
    assert swarm.job(job)["replicas"] == 2
    swarm.worker("c")
    wait_until(lambda: swarm.job(job)["replicas"] == 3, 60, "the third to be counted in")
    wait_until(lambda: task_of(swarm, "a"), 30, "worker a to hold a lease")
    swarm.kill("a")
    wait_until(lambda: swarm.job(job)["replicas"] == 2, 60, "the rounds to go on with two")
    done = swarm.wait_job(job, "done")
    assert done["replicas"] == done["path_list"][0]["replicas"] == done["history"][-1]["expected"] == 2, "those of its last round"
    epochs_add_up(done)
    assert samples_seen(done) % (30 * 8) == 0, "whole phases"
    assert samples_seen(done) >= 18 * 2 * 30 * 8


def test_little_data_is_few_phases(swarm):
    """Two phases take nearly all samples of the passes that may be open: the others have none, and the job goes on."""
    for name in "abcd":
        swarm.worker(name)
    swarm.joined(*"abcd")
    path = write_job(swarm.folder, images=4, batch=4, holdout=0, dim=16, depth=1, steps=2000, rounds=1)
    text = open(path, encoding="utf-8").read().replace("replicas: 2", "replicas: auto")
    open(path, "w", encoding="utf-8").write(text)
    job = swarm.submit(path)
    done = swarm.wait_job(job, "done")
    assert [(r["contributions"], r["samples"]) for r in done["history"]] == [(2, 2 * 2000 * 4)], "two whole phases"


def test_who_comes_slowly_is_not_waited_for(tmp_path):
    """A new worker needs three rounds to fetch a version: it catches up, and the others do not wait for it."""
    with running(tmp_path, "--heartbeat", "200ms") as swarm:  # who has lost a phase goes on fetching until it hears of that
        for name in "ab":
            swarm.worker(name)
        swarm.joined("a", "b")
        path = write_job(swarm.folder, dim=96, depth=4, rounds=1000, images=1600)
        text = open(path, encoding="utf-8").read().replace("replicas: 2", "replicas: auto").replace("steps: 4, lr", "seconds: 1, lr")
        open(path, "w", encoding="utf-8").write(text)
        job = swarm.submit(path)
        swarm.wait_round(job, 3)
        before = swarm.job(job)["round"]
        swarm.worker("slow", "--max-bandwidth", "7Mbit")
        wait_until(lambda: any(r["contributions"] == 3 and r["expected"] == 3 for r in swarm.job(job)["history"]) and "train steps=" in swarm.log("slow"),
                   15, "a round of three")
        lost, rounds = swarm.log("coordinatord").count("(slow) lost its lease"), swarm.job(job)["round"] - before
        assert lost <= max(3, rounds // 3), "a round that began in the moment in which it came may have counted it, and its first shards take a while"
