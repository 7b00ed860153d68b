"""PyTorch loads the model/ of `skerry run`, and a mixture's router, and their output is the same to bf16 accuracy."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import dit

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve()
PROBE = BUILD / "release/tests/tools/worker/model_probe"
os.environ.setdefault("SKERRY_BIN", str(BUILD / "bin"))
sys.path.insert(0, str(ROOT / "tests/integration"))
from common import skerry, write_job  # noqa: E402
import test_ddm  # noqa: E402


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    job = write_job(folder, rounds=3, steps=6, replicas=1)
    done = skerry("run", job, "--workers", "1", "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out" / "model"


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    return test_ddm.run(tmp_path_factory.mktemp("router"), rounds=6)[1] / "model-router"


def probe(folder, dtype, out, *more):
    """What our own network says with the weights of an exported folder."""
    config = json.load(open(folder / "config.json"))
    args = [dtype, config["image_size"], config["patch_size"], config["hidden_size"], config["depth"], config["num_heads"],
            int(config["hidden_size"] * config["mlp_ratio"]), config["num_classes"], folder / "model.safetensors", out, *more]
    subprocess.run([PROBE, *map(str, args)], check=True)
    return config, dit.read_safetensors(out)[0]


@pytest.mark.parametrize("dtype,rtol", [("f32", 2e-5), ("bf16", 0.03)])
def test_pytorch_says_the_same(exported, tmp_path, dtype, rtol):
    model = dit.load(exported)
    assert sum(p.abs().max() > 0 for p in model.final_layer.parameters()) == 4, "the model was trained"
    config, ours = probe(exported, dtype, tmp_path / "probe.safetensors")
    with torch.no_grad():
        pred = model(ours["x"], ours["t"], ours["labels"].long())
    labels = torch.arange(len(ours["x"])) % config["num_classes"]
    images = dit.sample(model, labels, steps=8, guidance=1.5, noise=ours["noise"])
    for what, got, want in (("prediction", ours["pred"], pred), ("sample", ours["sample"], images)):
        error = ((got - want).abs().max() / want.abs().max()).item()
        assert error <= rtol, f"{what}: relative error {error:.2g}"


@pytest.mark.parametrize("dtype,tolerance", [("f32", 1e-5), ("bf16", 0.02)])
def test_pytorch_routes_the_same(router, tmp_path, dtype, tolerance):
    """The probabilities of the experts, which are neither all equal nor the same for all points."""
    model = dit.load(router)
    _, ours = probe(router, dtype, tmp_path / "probe.safetensors", "router")
    with torch.no_grad():
        want = model(ours["x"], ours["t"])
    assert want.shape == (4, 3) and torch.allclose(want.sum(1), torch.ones(4))
    assert (want.max(1).values - want.min(1).values).min() > 10 * 1e-5
    assert (want - want[0]).abs().max() > 10 * 1e-5
    error = (ours["weights"] - want).abs().max().item()
    assert error <= tolerance, f"error of a probability: {error:.2g}"
