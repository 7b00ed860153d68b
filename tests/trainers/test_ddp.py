"""An island of two processes: torchrun with DistributedDataParallel or FSDP, of which rank 0 speaks with the worker."""
import importlib.util
import os
import pathlib
import sys

import numpy as np
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from common import children_of, read_safetensors, wait_until  # noqa: E402
from swarm import running  # noqa: E402
from test_external import write_program  # noqa: E402

EXAMPLE = ROOT / "examples" / "trainer-ddp" / "train.py"
EXAMPLES = [EXAMPLE, ROOT / "examples" / "trainer-fsdp" / "train.py"]
JOB = """name: ddp
data: {{kind: none}}
model: {{type: external}}
trainer: {{command: {python} -m skerry.torchrun --standalone --nproc_per_node 2 train.py, files: program, env: [PYTHONPATH={package}, OMP_NUM_THREADS=1]}}
train: {{batch: 8}}
recipe: {{replicas: 1}}
outer: {{rounds: 3, steps: {steps}, lr: 1, momentum: 0, ema: 0{outer}}}
wire: {{up: f32, down: f32}}
"""


class Alone:
    """The part of a phase's interface that the example's data() uses."""

    def __init__(self, first_step, steps):
        self.replica, self.first_step, self.batch, self.left = 0, first_step, 8, steps

    @property
    def more(self):
        self.left -= 1
        return self.left >= 0


def name_of(example):
    return example.parent.name


def one_process(source, rounds, steps, after=lambda at, weights: None):
    """Trains a single process on the same batches; `after` gets the weights after each step."""
    spec = importlib.util.spec_from_file_location("example", source)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for r in range(rounds):
        for at, (x, y) in enumerate(example.data(Alone(r * steps, steps)), 1):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            after(at, model.state_dict())
    return {name: t.detach().numpy() for name, t in model.state_dict().items()}


def in_fragments(rounds, steps):
    """The same with fragments: the first layer's weight (128 of 178 parameters) is sent at step 2 of 6, the others at step 4;
    two steps later each becomes the mean of its value then and the value that was sent."""
    given = {}

    def after(at, weights):
        for name, value in weights.items():
            step = 2 if name == "0.weight" else 4
            if at == step:
                given[name] = value.clone()
            elif at == step + 2:
                value.copy_(0.5 * value + 0.5 * given[name])
    one_process(EXAMPLE, rounds, steps, after)
    return {name: value.numpy() for name, value in given.items()}


@pytest.mark.parametrize("source", EXAMPLES, ids=name_of)
def test_torchrun(tmp_path, monkeypatch, source):
    """Two processes with half a batch each train as one process with the whole batch, over rounds, with the optimiser's state."""
    monkeypatch.syspath_prepend(os.path.abspath(os.environ.get("SKERRY_BUILD", "build")) + "/python")
    job = write_program(tmp_path, source, JOB, steps="5", outer="")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 60)
        assert s.skerry("export", told, "--out", tmp_path / "model").returncode == 0
        assert s.log("one").count("a trainer is here") == 1
    weights, want = read_safetensors(tmp_path / "model" / "model.safetensors"), one_process(source, 3, 5)
    assert weights.keys() == want.keys()
    for name, value in want.items():
        assert np.allclose(weights[name], value, rtol=1e-4, atol=1e-6), name


def test_fragments_of_ranks(tmp_path):
    """With DistributedDataParallel all ranks get the weights that come in mid-phase: one replica, which gets back the weights
    that it sent, equals a loop in one process."""
    job = write_program(tmp_path, EXAMPLE, JOB, steps="6", outer=", fragments: 2, delay: 2, mix: 0.5")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 60)
        assert s.skerry("export", told, "--out", tmp_path / "model").returncode == 0
    weights, want = read_safetensors(tmp_path / "model" / "model.safetensors"), in_fragments(3, 6)
    for name, value in want.items():
        assert np.allclose(weights[name], value, rtol=1e-4, atol=1e-6), name


def test_fsdp_refuses_fragments(tmp_path):
    """With FSDP no rank has the whole model, so weights cannot be exchanged in mid-phase."""
    job = write_program(tmp_path, EXAMPLES[1], JOB, steps="6", outer=", fragments: 2")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        said = "the trainer cannot exchange weights in mid-phase"
        wait_until(lambda: any(said in t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 60, said)


@pytest.mark.parametrize("source", EXAMPLES, ids=name_of)
def test_all_ranks_end(tmp_path, source):
    """Rank 0 learns in mid-phase that the phase was taken back, and so do the others; all ranks end with the worker."""
    job = write_program(tmp_path, source, JOB, steps="100000", outer="")
    with running(tmp_path / "swarm") as s:
        worker = s.worker("one", "--allow-trainers")
        told = s.submit(job)
        wait_until(
            lambda: any(t["kind"] == "train" and t["steps_done"] > 3 for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 60, "steps")
        family = set(children_of(worker.pid))
        ranks = {p for child in family for p in children_of(child)}
        assert {os.getsid(p) for p in ranks} <= {os.getsid(p) for p in family}, "the worker counts the memory of a session"
        assert s.skerry("cancel", told).returncode == 0
        assert len(ranks) >= 2
        wait_until(lambda: "was taken back" in s.log("one"), 20, "the phase to be left")
        worker.terminate()
        wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in family | ranks), 20, "all of them to end")
