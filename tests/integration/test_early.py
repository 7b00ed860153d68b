"""Early steps with real daemons: deltas come down while contributions still go up, and every version is what an audit makes of the record."""
import re

from common import skerry, wait_until
from swarm import swarm  # noqa: F401  (fixture)

WIDE = dict(dim=64, up="f32", down="f32", steps=4, replicas=2, rounds=100000)  # 0.9 MB each way
SLOW = ("--max-bandwidth", "4Mbit")


def said(swarm, name, what):
    return re.findall(what, swarm.log(name))


def begun(swarm):
    return len(said(swarm, "coordinatord", r"the step to version \d+ is begun early, with 2 contributions"))


def adopted(swarm):
    return said(swarm, "coordinatord", r"is at version (\d+) after \d+ ms \(begun early\)")


def audited(swarm, job):
    """Two more rounds, the job's end, and an audit of it."""
    swarm.wait_round(job, swarm.job(job)["round"] + 2)
    assert swarm.skerry("cancel", job).returncode == 0
    done = skerry("audit", job, "--data-dir", swarm.data)
    assert done.returncode == 0 and "outer step folded again, 0 faults" in done.stdout.replace("steps", "step"), done.stdout + done.stderr


def test_deltas_come_while_they_are_made(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(**WIDE)
    # Two workers and a machine that others use: each round may be in time, or not.
    wait_until(lambda: adopted(swarm) and said(swarm, "a", "came while it was made") and said(swarm, "b", "came while it was made"),
               120, "a delta that came while it was made")
    assert begun(swarm) >= len(adopted(swarm)) >= 1
    # What came early counts as any other delta.
    audited(swarm, job)
    moved = swarm.job(job)["bytes"]
    assert moved["down"] > 0.5 * moved["up"], moved


def test_a_worker_lost_in_the_upload(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(**WIDE)
    wait_until(lambda: begun(swarm) >= 2, 120, "a step that is begun early")
    swarm.kill("b")
    swarm.worker("c", *SLOW)
    audited(swarm, job)


def test_a_rollback_while_a_delta_comes(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(**WIDE)
    wait_until(lambda: said(swarm, "coordinatord", r"the step to version (?:[4-9]|\d\d+) is begun early"), 120, "a step that is begun early")
    to = swarm.job(job)["round"] - 1
    done = swarm.skerry("rollback", job, "--to", to)
    assert f"is what it was after round {to}" in done.stdout, done.stderr
    versions = {v["version"]: v for v in swarm.get(f"/v1/modules?job={job}").json()["items"][0]["versions"]}
    back = next(v for v in versions.values() if (v["provenance"] or {}).get("restored") == to)
    assert back["sha256"] == versions[to]["sha256"], "what was begun early is in no version"
    audited(swarm, job)
