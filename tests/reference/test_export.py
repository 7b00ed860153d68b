"""PyTorch loads the model/ of `skerry run`, and its output is the same to bf16 accuracy."""
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    job = write_job(folder, rounds=3, steps=6, replicas=1)
    done = skerry("run", job, "--workers", "1", "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out" / "model"


@pytest.mark.parametrize("dtype,rtol", [("f32", 2e-5), ("bf16", 0.03)])
def test_pytorch_says_the_same(exported, tmp_path, dtype, rtol):
    config = json.load(open(exported / "config.json"))
    model = dit.load(exported)
    assert sum(p.abs().max() > 0 for p in model.final_layer.parameters()) == 4, "the model was trained"
    out = tmp_path / "probe.safetensors"
    args = [dtype, config["image_size"], config["patch_size"], config["hidden_size"], config["depth"],
            config["num_heads"], int(config["hidden_size"] * config["mlp_ratio"]), config["num_classes"],
            exported / "model.safetensors", out]
    subprocess.run([PROBE, *map(str, args)], check=True)
    probe, _ = dit.read_safetensors(out)
    with torch.no_grad():
        pred = model(probe["x"], probe["t"], probe["labels"].long())
    labels = torch.arange(len(probe["x"])) % config["num_classes"]
    images = dit.sample(model, labels, steps=8, guidance=1.5, noise=probe["noise"])
    for what, got, want in (("prediction", probe["pred"], pred), ("sample", probe["sample"], images)):
        error = ((got - want).abs().max() / want.abs().max()).item()
        assert error <= rtol, f"{what}: relative error {error:.2g}"
