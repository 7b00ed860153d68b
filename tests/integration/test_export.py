"""`skerry export` and `skerry sample`: PyTorch draws the same pictures from the exported weights."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from common import BIN, HERE, read_safetensors, write_job
from swarm import swarm  # noqa: F401  (fixture)

sys.path.insert(0, os.path.join(HERE, "..", "reference"))
import dit  # noqa: E402

NOISE = os.path.join(os.path.abspath(os.environ.get("SKERRY_BUILD", "build")), "release/tests/tools/common/data/noise")
STREAM_SAMPLE, STREAM_UPSCALER, STREAM_TOLD, GAP, SIZE, LOW = 0x736D706C, 0x757073, 0x746F6C64, 1, 16, 8


def noise(seed, count, side=SIZE, stream=STREAM_SAMPLE):
    """The noise from which worker/net/sample.h starts: each image has its own random stream."""
    one = [subprocess.run([NOISE, str(seed), str(stream), str(i), str(3 * side * side)],
                          stdout=subprocess.PIPE, check=True).stdout for i in range(count)]
    return torch.from_numpy(np.stack([np.frombuffer(raw, np.float32) for raw in one]).reshape(count, 3, side, side))


def mix(a, b):
    """rng_mix of common/base/rng.h."""
    def finalise(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2 ** 64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2 ** 64
        return z ^ z >> 31
    return finalise(finalise((a + 0x9E3779B97F4A7C15) % 2 ** 64) ^ (b + 0xD1B54A32D192ED03) % 2 ** 64)


def tiles(path, count, columns):
    grid = np.asarray(Image.open(path).convert("RGB"), np.float32)
    step = SIZE + GAP
    cut = [grid[GAP + (i // columns) * step:, GAP + (i % columns) * step:][:SIZE, :SIZE] for i in range(count)]
    return np.stack(cut)


def told(path, keys):
    """The job file with more keys for its model."""
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("model: {", f"model: {{{keys}, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


@pytest.mark.parametrize("precision, tolerance, self_condition", [("f32", 1.01, 0), ("bf16", 6.0, 0), ("f32", 1.01, 0.5)])
def test_pytorch_draws_the_same_pictures(swarm, tmp_path, precision, tolerance, self_condition):
    swarm.worker("a", threads=2)
    path = write_job(tmp_path / "job", rounds=3, steps=20, replicas=1, precision=precision, ema=0.5)
    job = swarm.submit(told(path, f"self_condition: {self_condition}"))
    swarm.wait_job(job, "done")
    model = tmp_path / "model"
    assert swarm.skerry("export", job, "--out", model).returncode == 0
    labels = [0, 1, 1, 0]
    refused = swarm.skerry("sample", job, "--out", tmp_path / "nowhere" / "s.png")
    assert refused.returncode == 1 and f"nothing can be written to {tmp_path}/nowhere" in refused.stderr, refused.stderr
    drawn = swarm.skerry("sample", job, "--seed", 11, "--count", 4, "--labels", "0,1,1,0", "--steps", 8, "--guidance",
                         2.0, "--columns", 2, "--out", tmp_path / "s.png")
    assert drawn.returncode == 0, drawn.stderr
    ours = tiles(tmp_path / "s.png", 4, 2)
    torch_model = dit.load(str(model))
    theirs = dit.sample(torch_model, torch.tensor(labels), steps=8, guidance=2.0, noise=noise(11, 4))
    theirs = ((theirs.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).numpy()
    assert theirs.std() > 10, "a picture, not a constant"
    assert np.abs(ours - theirs).mean() < tolerance / 2
    assert np.quantile(np.abs(ours - theirs), 0.99) < tolerance


def pixels(x):
    return (x.clamp(-1, 1) + 1) * 127.5


def test_pytorch_draws_the_same_pictures_with_two_chains(swarm, tmp_path):
    """A base that reads its estimates draws small pictures, in whole numbers, and the upscaler large ones from them."""
    swarm.worker("a", threads=2)
    path = write_job(tmp_path / "job", rounds=3, steps=20, replicas=1, ema=0.5)
    with open(path, "a", encoding="utf-8") as f:
        f.write(f"upscaler: {{low_side: {LOW}, patch: 2, dim: 24, depth: 3, noise: 0.2}}\n")
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("model: {", "model: {self_condition: 0.5, ", 1).replace("train: {", "train: {shift: 3, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    job = swarm.submit(path)
    swarm.wait_job(job, "done")
    model = tmp_path / "model"
    assert swarm.skerry("export", job, "--out", model).returncode == 0
    drawn = swarm.skerry("sample", job, "--seed", 11, "--count", 4, "--labels", "0,1,1,0", "--steps", 8, "--guidance",
                         2.0, "--columns", 2, "--out", tmp_path / "s.png")
    assert drawn.returncode == 0, drawn.stderr
    ours, labels = tiles(tmp_path / "s.png", 4, 2), torch.tensor([0, 1, 1, 0])
    upscaler, seed = dit.load_upscaler(str(model)), mix(11, STREAM_UPSCALER)
    low = dit.sample(dit.load(str(model)), labels, steps=8, guidance=2.0, noise=noise(11, 4, side=LOW))
    large = dit.enlarge((pixels(low) + 0.5).floor(), SIZE) / 127.5 - 1
    told = (1 - upscaler.noise) * large + upscaler.noise * noise(seed, 4, stream=STREAM_TOLD)
    theirs = pixels(dit.sample(upscaler, labels, steps=8, guidance=2.0, noise=noise(seed, 4), told=told))
    theirs = theirs.permute(0, 2, 3, 1).numpy()
    assert theirs.std() > 10, "a picture, not a constant"
    assert np.abs(ours - theirs).mean() < 0.6
    assert np.quantile(np.abs(ours - theirs), 0.99) < 1.1


def test_a_model_learns_to_read_its_estimate(swarm, tmp_path):
    """A job that starts with weights of a model without estimates, on two devices, and another that starts with its export."""
    swarm.worker("isle", device="cpu,cpu", threads=2)
    path = write_job(tmp_path / "job", rounds=1, steps=6, replicas=1, eval_every=1)
    losses = []
    for n, keys in enumerate(("self_condition: 0", "self_condition: 0.5, warm_start: out-0", "self_condition: 1, warm_start: out-1")):
        write_job(tmp_path / "job", data=False, rounds=1, steps=6, replicas=1, eval_every=1)
        job = swarm.submit(told(path, keys))
        done = swarm.wait_job(job, "done")
        losses.append(done["eval_loss"])
        out = tmp_path / "job" / f"out-{n}"
        assert swarm.skerry("export", job, "--out", out, "--raw").returncode == 0
        wide = read_safetensors(out / "model.safetensors")["x_embedder.proj.weight"]
        assert wide.shape == (32, 6 if n else 3, 4, 4)
        if n:
            assert np.abs(wide[:, 3:]).max() > 0, "what reads the estimate is learnt"
            assert done["samples"][-1]["size"] > 0
    assert losses[0] > losses[1] > losses[2], "each goes on where the one before ended"


def test_export_is_plain_safetensors_with_the_names_of_dit(swarm, tmp_path):
    swarm.worker("a")
    job = swarm.submit(rounds=1, steps=2, replicas=1)
    swarm.wait_job(job, "done")
    done = swarm.skerry("export", job, "--out", tmp_path / "m", "--raw", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"job": job, "folder": str(tmp_path / "m")}
    tensors = read_safetensors(tmp_path / "m" / "model.safetensors")
    config = json.load(open(tmp_path / "m" / "config.json"))
    names = set(dit.DiT(**config).state_dict())
    assert names <= set(tensors) and set(tensors) - names <= {"pos_embed"}
    assert all(np.isfinite(t).all() for t in tensors.values())


def test_no_model_yet(swarm, tmp_path):
    job = swarm.submit(rounds=1)
    done = swarm.skerry("export", job, "--out", tmp_path / "m")
    assert done.returncode == 1
    assert "version 0" in done.stderr
