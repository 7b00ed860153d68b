"""Decentralized Diffusion Models through the whole system: partitions are made by tasks, experts
train alone, a router beside them, and samples are mixed."""
import json
import os

import pytest

from common import make_dataset, read_safetensors, skerry

JOB = """name: experts
seed: 5
data: {{path: data, image_size: 16, holdout: 0.2, shard_samples: 32}}
model: {{patch: 4, dim: 32, depth: 2, heads: 2}}
router: {{dim: 16, depth: 1, heads: 1}}
train: {{batch: 12, lr: 1e-3, precision: f32}}
recipe: {{name: ddm, experts: 3, replicas: {replicas}}}
partition: {{dims: 8, fine: 16, method: {method}}}
outer: {{rounds: {rounds}, steps: 4, ema: 0.5}}
sample: {{count: 4, steps: 3, columns: 2, guidance: 1.5}}
eval: {{every: 1, samples: 32}}
"""


def write(folder, **keys):
    values = dict(rounds=2, replicas=1, method="auto")
    values.update(keys)
    make_dataset(os.path.join(str(folder), "data"), classes=3, images=192)
    path = os.path.join(str(folder), "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(JOB.format(**values))
    return path


def run(folder, *options, workers=2, **keys):
    out = folder / "out"
    done = skerry("run", write(folder, **keys), "--workers", workers, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return json.load(open(out / "report.json", encoding="utf-8")), out


def figure(report, name):
    found = [f["value"] for f in report["job"]["figures"] if f["name"] == name]
    assert found, f"no figure {name} in {[f['name'] for f in report['job']['figures']]}"
    return found[-1]


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ddm"), "--strategies", "full,topk,nucleus,threshold,oracle")


def test_every_sample_is_in_one_partition(experts):
    report, _ = experts
    job = report["job"]
    assert len(job["partitions"]) == 3
    assert sum(p["samples"] + p["holdout_samples"] for p in job["partitions"]) == 192
    assert all(p["samples"] > 0 for p in job["partitions"])


def test_experts_exchange_nothing(experts):
    report, _ = experts
    modules = report["job"]["modules"]
    assert len(modules) == 4
    assert all(m["version"] == 2 for m in modules)
    assert all(m["bytes_from_others"] == 0 for m in modules)
    assert [p["round"] for p in report["job"]["path_list"]] == [2] * 4


def test_the_mixture_is_evaluated_and_drawn(experts):
    report, out = experts
    full, top1, oracle = (figure(report, f"loss {s}") for s in ("full", "top1", "oracle"))
    for loss in (full, top1, oracle):
        assert 0 < loss < 3
    assert 0 <= figure(report, "router accuracy") <= 1
    for name in ("full", "topk", "nucleus", "threshold", "oracle"):
        assert open(out / f"samples-{name}.png", "rb").read(4) == b"\x89PNG"
    # One grid of each expert beside the mixture's.
    paths = {s.get("path") for s in report["job"]["samples"]}
    assert {0, 1, 2} <= paths


def test_every_expert_and_the_router_are_saved(experts):
    report, out = experts
    assert sorted(p.name for p in out.iterdir() if p.name.startswith("model")) == ["model-0", "model-1", "model-2", "model-router"]
    weights = [read_safetensors(out / f"model-{i}" / "model.safetensors") for i in range(3)]
    table = "x_embedder.proj.weight"
    assert not any((weights[a][table] == weights[b][table]).all() for a in range(3) for b in range(a)), "each is another model"
    for i in range(3):
        assert sorted(os.listdir(out / f"model-{i}")) == [".skerry", "README.md", "config.json", "model.safetensors"]
    for path, name in zip(report["job"]["path_list"], ("0", "1", "2", "router")):  # each card has the numbers of its own path
        card = (out / f"model-{name}" / "README.md").read_text(encoding="utf-8")
        assert f"\n| samples | {path['samples']}, and {path['holdout']} held out |\n" in card, card
        assert ("held-out loss" in card) == (path["eval_loss"] is not None), card
    router = read_safetensors(out / "model-router" / "model.safetensors")
    config = json.load(open(out / "model-router" / "config.json", encoding="utf-8"))
    assert router["head.weight"].shape == (config["num_classes"], config["hidden_size"]) == (3, 16)
    assert router[table].shape == (config["hidden_size"], config["in_channels"], config["patch_size"], config["patch_size"])
    assert sum(k.endswith("attn.qkv.weight") for k in router) == config["depth"] == 1
    assert config["num_heads"] == 1 and config["image_size"] == 16 and config["round"] == report["job"]["round"]


def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    report, _ = run(tmp_path, "--drill", "1", rounds=3, replicas=2)
    assert report["job"]["state"] == "done"
    assert [m["version"] for m in report["job"]["modules"]] == [3] * 4


def test_one_worker_one_seed_equal_bits(tmp_path):
    models = []
    for name in ("a", "b"):
        os.makedirs(tmp_path / name)
        run(tmp_path / name, "--threads", "1" if name == "a" else "2", workers=1)
        models.append(read_safetensors(tmp_path / name / "out" / "model-0" / "model.safetensors"))
    assert models[0].keys() == models[1].keys()
    for k, v in models[0].items():
        assert (v == models[1][k]).all(), k


def test_a_random_partition_is_the_control(tmp_path):
    report, _ = run(tmp_path, method="random")
    sizes = [p["samples"] for p in report["job"]["partitions"]]
    assert min(sizes) > 0.5 * sum(sizes) / 3


@pytest.mark.parametrize("change, says", [
    (("experts: 3", "experts: 250, divide_batch: false"), "samples"),
    (("batch: 12", "batch: 13"), "recipe.experts"),
    (("dim: 16, depth: 1, heads: 1", "dim: 16, depth: 1, heads: 1, classes: 2"), "2 classes"),
    (("dims: 8", "dims: 8, features: column, column: dino"), "dino"),
    (("name: ddm", "name: dmm"), "dmm"),
])
def test_bad_jobs_are_refused_with_a_sentence(tmp_path, change, says):
    path = write(tmp_path)
    text = open(path, encoding="utf-8").read()
    assert change[0] in text
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(*change))
    done = skerry("run", path, "--workers", 1, "--out", tmp_path / "out")
    assert done.returncode in (1, 4), done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("skerry:")]
    assert len(last) == 1 and says in last[0], done.stderr
