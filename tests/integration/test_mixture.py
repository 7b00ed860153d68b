"""Experts that were trained together draw together: on one worker or from afar, and distilled into one model."""
import hashlib
import os
import signal

import pytest

from common import make_dataset, wait_until
from swarm import swarm  # noqa: F401  (fixture)

SHAPE = """data: {path: data, image_size: 16, holdout: 0.2, shard_samples: 32}
model: {patch: 4, dim: 32, depth: 2, heads: 2}
train: {batch: 12, lr: 1e-3, precision: f32}
outer: {rounds: 2, steps: 4}
eval: {every: 0, samples: 32}
"""
EXPERTS = SHAPE + """name: experts
seed: 5
router: {dim: 16, depth: 1, heads: 1}
recipe: {name: ddm, experts: 3}
partition: {dims: 0, fine: 16}
sample: {count: 4, steps: 3, columns: 2, guidance: 1.5, strategy: topk, top: 2}
"""
STUDENT = SHAPE + """name: student
seed: 6
recipe: {name: distill, teacher: %d}
sample: {count: 4, steps: 3, columns: 2, guidance: 1.5}
"""


def write(folder, text):
    make_dataset(os.path.join(str(folder), "data"), classes=3, images=192)
    path = os.path.join(str(folder), "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


@pytest.fixture
def experts(swarm, tmp_path):
    for name in ("a", "b"):
        swarm.worker(name)
    job = swarm.submit(write(tmp_path, EXPERTS))
    swarm.wait_job(job, "done")
    return job


def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def test_from_afar_or_here_the_same_grid(swarm, experts, tmp_path):
    grids = []
    for i, flags in enumerate(([], ["--remote"])):
        grid = tmp_path / f"grid-{i}.png"
        drawn = swarm.skerry("sample", experts, "--out", grid, "--strategy", "full", "--count", "5", "--steps", "3", *flags)
        assert drawn.returncode == 0, drawn.stderr
        grids.append(digest(grid))
    assert grids[0] == grids[1]
    assert any("velocity" in swarm.log(name) for name in ("a", "b"))


def test_from_afar_takes_two(swarm, experts):
    """A worker that draws cannot evaluate experts as well: the status names the missing worker, and the drawing waits."""
    swarm.kill("b", signal.SIGTERM)
    task = swarm.post(f"/v1/jobs/{experts}/sample", {"remote": True, "steps": 3}).json()["task"]

    def reasons():
        return [w["why"] for w in swarm.get("/v1/status").json()["waiting_for"] if w["task"] == task]
    wait_until(lambda: any("one more worker" in r for r in reasons()), 20, "the reason")
    swarm.worker("c")
    wait_until(lambda: swarm.get(f"/v1/tasks/{task}").json()["state"] == "done", 60, "the grid")


def test_one_student_of_all_experts(swarm, experts, tmp_path):
    folder = tmp_path / "student"
    job = swarm.submit(write(folder, STUDENT % experts))
    done = swarm.wait_job(job, "done")
    assert [m["version"] for m in done["modules"]] == [2]
    # What experts say differs less from their equal than the noise of the data does.
    assert 0 < done["loss"] < 0.1
