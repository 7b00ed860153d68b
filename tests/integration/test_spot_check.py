"""A new worker's first phase is repeated by a proven worker of another token: honest workers get the same bits, and none is
doubted."""
import re

from common import wait_until
from swarm import swarm  # noqa: F401  (fixture)
from test_ddm import write as write_experts

ALIKE = r"the phase of worker {}, task \d+, is confirmed by worker {} \((.*) apart\)"


def test_honest_workers_agree(swarm):
    swarm.worker("proven")
    swarm.wait_job(swarm.submit(rounds=1, replicas=1), "done")
    made = swarm.skerry("tokens", "--new", "worker")
    assert made.returncode == 0, made.stderr
    swarm.worker_token = made.stdout.strip()
    swarm.worker("new")
    swarm.joined("proven", "new")
    job = swarm.submit(rounds=200, replicas=2, images=400)
    ids = {w["name"]: w["id"] for w in swarm.get("/v1/workers").json()["items"]}
    alike = ALIKE.format(ids["new"], ids["proven"])
    found = wait_until(lambda: re.search(alike, swarm.log("coordinatord")), 60, "the check of a phase")
    assert found[1] == "0", found[0]
    round_then = swarm.job(job)["round"]
    swarm.wait_round(job, round_then + 3)  # and everybody trains
    checks = [t for t in swarm.get("/v1/tasks").json()["items"] if t["kind"].upper() == "CHECK"]
    assert len(checks) <= 2 and {t["state"] for t in checks} == {"done"}, checks  # once each, at most
    assert "is not confirmed" not in swarm.log("coordinatord")


def test_honest_workers_make_the_same_partitions(swarm, tmp_path):
    """What one fits is made again by the other, before anything is copied for it: nobody makes another thing of it."""
    swarm.worker("one")
    swarm.worker_token = swarm.skerry("tokens", "--new", "worker").stdout.strip()
    swarm.worker("other")
    swarm.joined("one", "other")
    swarm.wait_job(swarm.submit(write_experts(tmp_path)), "done")
    log = swarm.log("coordinatord")
    assert re.search(r"CLUSTER task \d+ of job \d+ leased worker=\d+ attempt=2", log), "it was not made again"
    assert not re.search("different results|another result|quarantine", log)
