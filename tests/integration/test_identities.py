"""Identities of DiLoCo that hold to the bit, with real daemons.

One replica, f32 both ways, outer lr 1 and momentum 0: an outer step passes on the replica's last weights, Adam's
moments stay at the worker, and the noise of step s depends only on s.  So 12 rounds of 1 step are 1 round of 12 steps:
plain training.  Only the order of the images differs, because a phase shuffles all its samples; with equal images
under one label every order is the same."""
import os
import shutil

from common import make_dataset, wait_until, write_job
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
        exported = swarm.skerry("export", job, "--out", out, "--raw", "--replace")
        assert exported.returncode == 0, exported.stderr
        return done["modules"][0]["sha256"], open(out / "model.safetensors", "rb").read()

    outer, outer_file = train(STEPS, 1)
    plain, plain_file = train(1, STEPS)
    half, half_file = train(1, STEPS // 2)
    assert outer == plain
    assert outer_file == plain_file
    assert half != plain and half_file != plain_file, "the steps do change the model"


def test_a_copy_of_a_machine_waits(swarm):
    """Machines made from one image share a work directory's identity: the first one works on, and the others are told what to do."""
    swarm.worker("a", "--throttle", "5")
    swarm.joined("a")
    job = swarm.submit(rounds=2, steps=200)
    wait_until(lambda: swarm.get("/v1/workers").json()["items"][0]["task"], 60, "a to work")
    shutil.copytree(os.path.join(swarm.folder, "work-a"), os.path.join(swarm.folder, "work-b"), ignore=shutil.ignore_patterns("*lock*"))
    swarm.worker("b", "--throttle", "5")

    def told():
        return [w for w in swarm.get("/v1/status").json()["waiting_for"] if "1 other process uses its identity" in w["why"]]
    line = wait_until(told, 30, "the status to say so")[0]
    assert line["worker"] == 1 and line["what"] == "worker 1 (a)" and "remove identity, tls-key.pem and tls-cert.pem" in line["why"], line
    wait_until(lambda: swarm.log("b").count("remove identity, tls-key.pem and tls-cert.pem from its work dir"), 30, "b to say why it waits")
    swarm.wait_job(job, "done")
    assert [w["id"] for w in swarm.get("/v1/workers").json()["items"]] == [1]
    assert swarm.log("coordinatord").count("a worker was not admitted") == 1
