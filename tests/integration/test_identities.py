"""Identities of DiLoCo that hold to the bit, with real daemons.

One replica, f32 both ways, outer lr 1 and momentum 0: an outer step passes on the replica's last weights, Adam's
moments stay at the worker, and the noise of step s depends only on s.  So 12 rounds of 1 step are 1 round of 12 steps:
plain training.  Only the order of the images differs, because a phase shuffles all its samples; with equal images
under one label every order is the same."""
import os
import shutil

from common import make_dataset, write_job
from swarm import swarm  # noqa: F401  (fixture)

STEPS = 12


def equal_images(folder, n=24):
    make_dataset(folder, classes=1, images=1)
    where = os.path.join(folder, "disc")
    for i in range(1, n):
        shutil.copy(os.path.join(where, "00000.png"), os.path.join(where, f"{i:05d}.png"))


def test_rounds_of_one_step_are_plain_training(swarm, tmp_path):
    equal_images(os.path.join(tmp_path, "job", "data"))
    swarm.worker("a")

    def train(rounds, steps):
        job = write_job(tmp_path / "job", data=False, rounds=rounds, steps=steps, replicas=1, lr=1, momentum=0, ema=0,
                        up="f32", down="f32", holdout=0)
        job = swarm.submit(job)
        done = swarm.wait_job(job, "done")
        assert done["modules"][0]["version"] == rounds
        out = tmp_path / f"model-{rounds}"
        exported = swarm.skerry("export", job, "--out", out, "--raw")
        assert exported.returncode == 0, exported.stderr
        return done["modules"][0]["sha256"], open(out / "model.safetensors", "rb").read()

    outer, outer_file = train(STEPS, 1)
    plain, plain_file = train(1, STEPS)
    half, half_file = train(1, STEPS // 2)
    assert outer == plain
    assert outer_file == plain_file
    assert half != plain and half_file != plain_file, "the steps do change the model"
