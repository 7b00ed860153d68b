"""A model of two chains through the whole system: the example learns in both chains, runs repeat to the bit, its export
is a warm start, and job files that do not fit are refused."""
import json
import os
import re

import pytest

from common import HERE, dataset, read_safetensors, skerry
from swarm import swarm  # noqa: F401  (fixture)

EXAMPLE, EXPERTS = (os.path.join(HERE, "..", "..", "examples", f"cascade-{name}emoji.yaml") for name in ("", "ddm-"))
FEW = r"dims: 32, fine: 128, balance: 1\.5", "dims: 8, fine: 16"  # pictures
CHAINS = ["base's loss", "upscaler's loss"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("cascade"))
    dataset.make(os.path.join(folder, "data"), classes=2, images=256, size=16)
    return folder


def write(place, name, *changes, example=EXAMPLE):
    """The example on small pictures, with each (pattern, text) of changes replaced once."""
    with open(example, encoding="utf-8") as f:
        text = f.read()
    for old, new in ((r"\.\./build/demo/emoji", "data"), (r"holdout: 0\.05", "holdout: 0.2"), (r"count: 72, columns: 9, steps: 30",
                     "count: 4, columns: 2, steps: 5"), (r"warmup: 60", "warmup: 5"), (r"every: 5", "every: 1"), *changes):
        text, n = re.subn(old, new, text)
        assert n == 1, old
    path = os.path.join(place, name + ".yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def run(place, name, *changes, workers=1, more=(), example=EXAMPLE):
    out = os.path.join(place, "out-" + name)
    done = skerry("run", write(place, name, *changes, example=example), "--workers", workers, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(out, "report.json"), encoding="utf-8") as f:
        return json.load(f), out


def losses(report):
    """The loss of each chain on the held-out pictures."""
    found = {f["name"]: f["value"] for f in report["job"]["figures"]}
    assert sum(found[c] for c in CHAINS) == pytest.approx(report["job"]["eval_loss"], rel=1e-5)
    return [found[c] for c in CHAINS]


def model(out):
    with open(os.path.join(out, "model", "model.safetensors"), "rb") as f:
        return f.read()


def rounds(n, steps):
    return r"rounds: 15, steps: 40", f"rounds: {n}, steps: {steps}"


def test_both_chains_learn(place):
    first, _ = run(place, "first", rounds(1, 2), workers=2)
    last, out = run(place, "last", rounds(4, 25), workers=2)
    for before, after in zip(losses(first), losses(last)):
        assert after < 0.5 * before
    modules = {(m["network"], m["level"]): m for m in last["modules"]}
    assert sorted(modules) == [("main", 0), ("main", 1)], "a level of each chain, one module each"
    assert all(m["version"] == 4 for m in modules.values())
    tensors = read_safetensors(os.path.join(out, "model", "model.safetensors"))
    assert tensors["x_embedder.proj.weight"].shape == (96, 3, 1, 1)
    assert tensors["upscaler.x_embedder.proj.weight"].shape == (96, 6, 2, 2)
    for level, prefix in ((0, False), (1, True)):
        mine = sum(t.size for name, t in tensors.items() if name.startswith("upscaler.") == prefix)
        assert modules["main", level]["parameters"] == mine
    with open(os.path.join(out, "model", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert config["image_size"] == 8 and config["upscaler"]["image_size"] == 16
    # What it exported is a start: with hardly a step its losses are those that it had.
    start = (r"depth: 3, heads: 4\}\nups", f"depth: 3, heads: 4, warm_start: {out}/model}}\nups")
    again, _ = run(place, "again", start, rounds(1, 1), (r"lr: 1\.5e-3", "lr: 1e-7"))
    assert losses(again) == pytest.approx(losses(last), rel=0.05)


def test_runs_repeat_to_the_bit(place):
    small = (r"precision|beta2: 0\.95", "beta2: 0.95, precision: f32")
    runs = [run(place, name, rounds(2, 3), small, (r"replicas: 2", "replicas: 1"), more=("--threads", threads))[1]
            for name, threads in (("a", "1"), ("b", "2"))]
    assert model(runs[0]) == model(runs[1])
    drawn = [open(os.path.join(out, "samples.png"), "rb").read() for out in runs]
    assert drawn[0] == drawn[1]


def test_two_devices_train_it(place):
    """By data parallelism or as a pipeline, whichever is faster there; each chain is cut into fragments."""
    report, out = run(place, "two", rounds(2, 4), (r"momentum: 0\.6", "momentum: 0.6, fragments: 3"),
                      more=("--device", "cpu,cpu"))
    assert len(report["modules"]) == 6
    assert all(m["version"] == 2 for m in report["modules"])
    assert all(loss > 0 for loss in losses(report))
    del out


def test_paths_of_both_chains(place):
    """DiPaCo: a level of each chain, two modules each; a path is a base with an upscaler, and learns, draws and goes out as one."""
    paths = (r"name: diloco, replicas: 2", "name: dipaco, levels: [2, 2]"), (r"eval: \{", "partition: {dims: 8, fine: 16}\neval: {")
    first, _ = run(place, "paths-first", rounds(1, 2), *paths, workers=2)
    last, out = run(place, "paths", rounds(2, 15), *paths, workers=2)
    modules = {(m["level"], m["index"]): m for m in last["job"]["modules"]}
    assert sorted(modules) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(m["version"] == 2 and m["bytes_from_others"] > 0 for m in modules.values())
    assert sum(p["samples"] for p in last["job"]["partitions"]) > 0 and len(last["job"]["partitions"]) == 4

    def by_path(report):
        return {(f["path"], f["name"]): f["value"] for f in report["job"]["figures"] if f["name"] in CHAINS}
    before, after = by_path(first), by_path(last)
    assert len(after) == 8
    assert all(after[key] < 0.9 * before[key] for key in after), (before, after)
    models = [read_safetensors(os.path.join(out, f"model-{p}", "model.safetensors")) for p in range(4)]
    for name in models[0]:
        same = [(models[0][name] == m[name]).all() for m in models]
        # Paths are (base, upscaler): 0 and 1 have the base in common, 0 and 2 the upscaler.
        assert same == ([True, False, True, False] if name.startswith("upscaler.") else [True, True, False, False]), name
    assert os.path.getsize(os.path.join(out, "samples.png")) > 0
    warm, _ = run(place, "paths-warm", rounds(1, 2), (r"patch: 1", f"warm_start: {out}/model-0, patch: 1"), *paths, workers=2)
    assert by_path(warm)[0, CHAINS[1]] < 0.9 * before[0, CHAINS[1]]  # clusters are those of pixels


def test_experts_of_both_chains(place):
    """DDM: each expert has both chains and a cluster of its own; the router mixes the velocities of either chain."""
    first, _ = run(place, "experts-first", rounds(1, 2), FEW, workers=2, example=EXPERTS)
    last, out = run(place, "experts", rounds(2, 15), FEW, workers=2, example=EXPERTS)
    job = last["job"]
    modules = {(m["network"], m["level"], m["index"]): m for m in job["modules"]}
    assert sorted(modules) == [("main", 0, 0), ("main", 0, 1), ("main", 1, 0), ("main", 1, 1), ("router", 0, 0)]
    assert all(m["version"] == 2 and m["bytes_from_others"] == 0 for m in modules.values())

    def of_mixture(report):
        return {f["name"]: f["value"] for f in report["job"]["figures"] if f.get("path") is None}
    before, after = of_mixture(first), of_mixture(last)
    for chain in CHAINS:
        assert after[chain] < 0.9 * before[chain], (before, after)
    assert sum(after[c] for c in CHAINS) == pytest.approx(after["loss top1"], rel=1e-5)
    assert 0 <= after["router accuracy"] <= 1
    models = [read_safetensors(os.path.join(out, f"model-{p}", "model.safetensors")) for p in range(2)]
    for name in ("x_embedder.proj.weight", "upscaler.x_embedder.proj.weight"):
        assert not (models[0][name] == models[1][name]).all(), name
    with open(os.path.join(out, "model-router", "config.json"), encoding="utf-8") as f:
        assert json.load(f)["image_size"] == 8
    assert os.path.getsize(os.path.join(out, "samples.png")) > 0
    # An expert is a start for all: with hardly a step they are still one model, and its mixture is that model.
    start = (r"depth: 3, heads: 4\}\nups", f"depth: 3, heads: 4, warm_start: {out}/model-0}}\nups"), (r"lr: 1\.5e-3", "lr: 1e-7")
    warm = of_mixture(run(place, "experts-warm", rounds(1, 1), FEW, *start, workers=2, example=EXPERTS)[0])
    one = losses(run(place, "expert-alone", rounds(1, 1), *start)[0])
    assert [warm[c] for c in CHAINS] == pytest.approx(one, rel=1e-3)


def test_experts_from_afar_and_distilled(place, swarm):
    """The same grid wherever the experts are; a student of both chains; an expert is a start."""
    for name in ("a", "b"):
        swarm.worker(name)
    job = swarm.submit(write(place, "afar", rounds(2, 10), FEW, example=EXPERTS))
    swarm.wait_job(job, "done")
    grids = []
    for i, flags in enumerate(([], ["--remote"])):
        grid = os.path.join(place, f"afar-{i}.png")
        drawn = swarm.skerry("sample", job, "--out", grid, "--strategy", "full", "--count", "5", "--steps", "3", *flags)
        assert drawn.returncode == 0, drawn.stderr
        with open(grid, "rb") as f:
            grids.append(f.read())
    assert grids[0] == grids[1]
    assert any("velocity" in swarm.log(name) for name in ("a", "b"))

    # What experts say differs less from their equal than the noise of the data does.
    student = swarm.submit(write(place, "student", rounds(1, 30), (r"name: diloco, replicas: 2", f"name: distill, teacher: {job}")))
    done = swarm.wait_job(student, "done")
    assert [m["version"] for m in done["modules"]] == [1, 1]
    assert 0 < done["loss"] < 0.5 * swarm.job(job)["loss"]


@pytest.mark.parametrize("change, words", [
    ((r"low_side: 8", "low_side: 6"), "upscaler.low_side is 6, which does not divide data.image_size (16)"),
    ((r"low_side: 8, ", ""), "upscaler.low_side is missing"),
    ((r"name: diloco, replicas: 2\}", "name: ddm, experts: 2}\nrouter: {patch: 16}"),
     "router.patch is 16, which does not divide upscaler.low_side (8)"),
    ((r"name: diloco, replicas: 2\}", "name: ddm, experts: 2}\npartition: {features: model}"), "partition.features"),
    ((r"batch: 32,", "batch: 32, pipeline: divided, stages: 9,"), "train.stages is 9, but the model and the upscaler have 6 blocks"),
    ((r"patch: 1, dim: 96, depth: 3, heads: 4\}", "type: llama, dim: 96, depth: 3, heads: 4}"), "upscaler"),
])
def test_what_does_not_fit_is_refused(place, change, words):
    done = skerry("check", write(place, "refused", change))
    assert done.returncode != 0
    assert words in done.stderr and done.stderr.strip().count("\n") == 0
