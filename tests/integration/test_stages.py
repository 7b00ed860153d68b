"""The coordinator is killed in every stage of a job with partitions, and the job goes on."""
import os

from common import make_dataset, wait_until
from swarm import swarm  # noqa: F401

JOB = """name: stages
seed: 5
data: {path: data, image_size: 16, holdout: 0.2, shard_samples: 16}
model: {patch: 4, dim: 32, depth: 2, heads: 2}
train: {batch: 16, lr: 1e-3, precision: f32}
recipe: {name: ddm, experts: 4, early_stop: true, replicas: 2}
partition: {dims: 8}
outer: {rounds: 3, steps: 3, ema: 0.5}
wire: {up: e3m0, down: e3m0}
sample: {count: 4, steps: 3, columns: 2}
eval: {every: 1, samples: 32}
"""
OVER = ("done", "failed", "cancelled")


def test_a_coordinator_killed_in_each_stage(swarm, tmp_path):  # noqa: F811
    folder = tmp_path / "job"
    make_dataset(folder / "data", images=160)
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    swarm.worker("a")
    swarm.worker("b")
    job, seen = swarm.submit(os.fspath(folder / "job.yaml")), []
    while True:
        now = wait_until(lambda: next((j for j in [swarm.job(job)] if (j["state"], j["round"]) not in seen), None), 120,
                         f"the job to go on after {seen[-1:]}")
        if now["state"] in OVER:
            break
        seen.append((now["state"], now["round"]))
        swarm.kill("coordinatord")
        swarm.coordinator()
        after = swarm.job(job)
        assert after["round"] >= now["round"] and after["generation"] >= now["generation"]
    assert now["state"] == "done", now["reason"]
    assert len({state for state, _ in seen}) >= 4, seen  # a stage may be over before it is seen
    assert now["generation"] == 1
    assert all(m["version"] == 3 for m in now["modules"])
    assert sum(p["samples"] for p in now["partitions"]) == 130, "every image is in one partition"
    assert sum(p["holdout_samples"] for p in now["partitions"]) == 30
    assert now["epochs"]
    for e in now["epochs"]:
        assert e["done"] + e["pending"] == e["total"] and e["leased"] == 0
