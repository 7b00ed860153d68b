"""PyTorch loads a language model from the model/ of `skerry run` with the same output, and a job
starts from it."""
import json

import pytest
import torch

import llama
from dit import read_safetensors
from exported import SCALED, ours, skerry, train


@pytest.fixture(scope="module", params=[(False, ""), (True, ""), (False, SCALED)], ids=["head", "tied", "scaled"])
def exported(request, tmp_path_factory):
    tied, more = request.param
    return train(tmp_path_factory.mktemp("export"), tied, more=more)


@pytest.mark.parametrize("dtype,rtol", [("f32", 2e-5), ("bf16", 0.04)])
def test_pytorch_says_the_same(exported, tmp_path, dtype, rtol):
    got = ours(exported, tmp_path / "probe.safetensors", dtype)
    model, tokens = llama.load(exported), got["tokens"].long()
    with torch.no_grad():
        want = model(tokens[:, :-1])
    error = ((got["logits"] - want).abs().max() / want.abs().max()).item()
    assert error <= rtol, f"logits: relative error {error:.2g}"
    if dtype == "f32":
        half = len(got["text"])
        assert got["text"].tolist() == llama.generate(model, tokens[0, :half].tolist(), half)


def test_it_was_trained(exported):
    """Text of the kind that was trained is more likely than without training."""
    model = llama.load(exported)
    tokens = torch.tensor([[256, *"the sea of the rock".encode()]])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
    assert loss < 5.0 < torch.log(torch.tensor(257.0))


def test_a_job_starts_from_it(exported, tmp_path):
    """Version 0 has the folder's weights: with a tiny learning rate they hardly change."""
    config = json.load(open(exported / "config.json"))
    again = train(tmp_path, config["tie_word_embeddings"], steps=1,
                  more=f', warm_start: "{exported}"' + (SCALED if config["rope_scaling"] else ""))
    start, end = (read_safetensors(m / "model.safetensors")[0] for m in (exported, again))
    assert start.keys() == end.keys()
    for name in start:  # two steps of at most the rate, 3e-3, each
        assert (end[name] - start[name]).abs().max() < 0.02, name


def test_a_warm_start_that_does_not_fit(exported, tmp_path):
    job = tmp_path / "job.yaml"
    train_job = (exported.parents[1] / "job.yaml").read_text().replace("dim: 48", f'dim: 64, warm_start: "{exported}"')
    job.write_text(train_job.replace("tales.jsonl", str(exported.parents[1] / "tales.jsonl")))
    done = skerry("check", job)
    assert done.returncode == 4 and "hidden_size 48, but the job's model.dim is 64" in done.stderr
