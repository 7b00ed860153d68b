"""An ended job is removed: by a person who has seen what goes, with all its files, for good."""
import os

from common import wait_until
from swarm import swarm  # noqa: F401 (a fixture)


def kept(swarm):  # noqa: F811
    """The SHA-256 of all files in the coordinator's blob store, also of those that only have to be deleted."""
    return {f.split(".")[0] for _, _, files in os.walk(os.path.join(swarm.data, "blobs")) for f in files}


def named(swarm, job):  # noqa: F811
    """The SHA-256 and size of each blob of the job's samples and versions."""
    versions = [v for m in swarm.get(f"/v1/modules?job={job}").json()["items"] for v in m["versions"]]
    blobs = {v[kind]["sha256"]: v[kind]["size"] for v in versions for kind in ("full", "ema", "delta") if v[kind]}
    return blobs | {s["blob"]: s["size"] for s in swarm.job(job)["samples"]}


def test_a_removed_job_leaves_nothing(swarm):  # noqa: F811
    swarm.worker()
    keys = {"rounds": 2, "steps": 2, "replicas": 1, "sample_every": 1, "eval_every": 1, "ema": 0.5}
    job = swarm.submit(**keys)
    swarm.wait_job(job, "done")
    other = swarm.submit(**{**keys, "dim": 64})  # of the same data: equal jobs would have equal files
    swarm.wait_job(other, "done")
    long = swarm.submit(**{**keys, "dim": 64, "rounds": 1000, "steps": 100})
    refused = swarm.skerry("remove", long, "--yes")
    assert refused.returncode == 1 and "has not ended, it is" in refused.stderr and f"`skerry cancel {long}`" in refused.stderr, refused.stderr
    assert swarm.skerry("cancel", long).returncode == 0
    samples = [s["blob"] for s in swarm.job(job)["samples"]]
    assert samples and all(swarm.get(f"/v1/blobs/{b}").status_code == 200 for b in samples)
    gone = named(swarm, job)
    assert set(gone) <= kept(swarm) and not set(gone) & set(named(swarm, other))

    unsure = swarm.skerry("remove", job)
    assert unsure.returncode == 2 and f"job {job} (" in unsure.stderr and "give --yes to remove it for good" in unsure.stderr, unsure.stderr
    assert swarm.job(job)["state"] == "done"
    unsure = swarm.skerry("remove", long)  # why it ended is said, too
    reason = swarm.job(long)["reason"]
    assert reason and f"is cancelled: {reason}; its record" in unsure.stderr, (reason, unsure.stderr)
    assert swarm.post(f"/v1/jobs/{job}/remove", {"dry_run": True}).json()["bytes"] >= sum(gone.values())
    done = swarm.skerry("remove", job, "--yes")
    assert done.returncode == 0 and f"job {job} (" in done.stdout, done.stderr
    wait_until(lambda: not set(gone) & kept(swarm), 30, "its files to go")
    assert swarm.get(f"/v1/jobs/{job}").status_code == 404
    assert not swarm.get(f"/v1/tasks?job={job}").json().get("items")
    assert f"job {job} does not exist" in swarm.skerry("status", job).stderr
    assert f"job {job} does not exist" in swarm.skerry("remove", job, "--yes").stderr
    assert any(f"job {job} (" in e["text"] and "was removed with the token 'user.token'" in e["text"] for e in swarm.get("/v1/log").json()["items"])

    swarm.kill("coordinatord")
    swarm.coordinator()
    assert [j["id"] for j in swarm.get("/v1/jobs").json()["items"]] == [other, long]
    assert swarm.skerry("export", other, "--out", os.path.join(swarm.folder, "model")).returncode == 0
    assert swarm.skerry("audit", other, "--data-dir", swarm.data).returncode == 0
    again = swarm.submit(**keys)  # with shards that are still here
    assert again > other
    swarm.wait_job(again, "done")
