"""Early steps with real daemons: deltas come down while contributions still go up, and every version is what an audit makes of the record."""
import re

from common import skerry, wait_until
from swarm import swarm  # noqa: F401  (fixture)

WIDE = dict(dim=64, up="f32", down="f32", steps=4, replicas=2)  # 0.9 MB each way
SLOW = ("--max-bandwidth", "4Mbit")


def said(swarm, name, what):
    return re.findall(what, swarm.log(name))


def begun(swarm):
    return len(said(swarm, "coordinatord", r"the step to version \d+ is begun early, with 2 contributions"))


def adopted(swarm):
    return said(swarm, "coordinatord", r"is at version (\d+) after \d+ ms \(begun early\)")


def audited(swarm, job):
    done = skerry("audit", job, "--data-dir", swarm.data)
    assert done.returncode == 0 and "outer step folded again, 0 faults" in done.stdout.replace("steps", "step"), done.stdout + done.stderr


def test_deltas_come_while_they_are_made(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(rounds=6, **WIDE)
    # Two workers and a machine that others use: each round may be in time, or not.
    wait_until(lambda: adopted(swarm) and said(swarm, "a", "came while it was made") and said(swarm, "b", "came while it was made"),
               120, "a delta that came while it was made")
    done = swarm.wait_job(job, "done")
    assert begun(swarm) >= len(adopted(swarm)) >= 1
    # What came early counts as any other delta.
    assert done["bytes"]["down"] > 0.5 * done["bytes"]["up"], done["bytes"]
    audited(swarm, job)


def test_a_worker_lost_in_the_upload(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(rounds=5, **WIDE)
    wait_until(lambda: begun(swarm) >= 2, 120, "a step that is begun early")
    swarm.kill("b")
    swarm.worker("c", *SLOW)
    swarm.wait_job(job, "done")
    audited(swarm, job)


def test_a_rollback_while_a_delta_comes(swarm):
    for name in "ab":
        swarm.worker(name, *SLOW)
    swarm.joined("a", "b")
    job = swarm.submit(rounds=6, **WIDE)
    wait_until(lambda: said(swarm, "coordinatord", "the step to version 4 is begun early"), 120, "a step that is begun early")
    done = swarm.skerry("rollback", job, "--to", "2")
    assert "is what it was after round 2" in done.stdout, done.stderr
    versions = {v["version"]: v for v in swarm.get(f"/v1/modules?job={job}").json()["items"][0]["versions"]}
    back = next(v for v in versions.values() if (v["provenance"] or {}).get("restored") == 2)
    assert back["sha256"] == versions[2]["sha256"], "what was begun early is in no version"
    swarm.wait_job(job, "done")
    audited(swarm, job)
