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
outer: {{rounds: 3, steps: {steps}, lr: 1, momentum: 0, ema: 0}}
wire: {{up: f32, down: f32}}
"""


class Alone:
    """As much of a phase as the example's data() asks for."""

    def __init__(self, first_step, steps):
        self.first_step, self.batch, self.left = first_step, 8, steps

    @property
    def more(self):
        self.left -= 1
        return self.left >= 0


def name_of(example):
    return example.parent.name


def one_process(source, rounds, steps):
    """What a single process makes of the same batches."""
    spec = importlib.util.spec_from_file_location("example", source)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for r in range(rounds):
        for x, y in example.data(Alone(r * steps, steps)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return {name: t.detach().numpy() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("source", EXAMPLES, ids=name_of)
def test_torchrun(tmp_path, monkeypatch, source):
    """Two processes of half a batch each are one of a whole batch, over rounds, with the optimiser's state."""
    monkeypatch.syspath_prepend(os.path.abspath(os.environ.get("SKERRY_BUILD", "build")) + "/python")
    job = write_program(tmp_path, source, JOB, steps="5")
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


@pytest.mark.parametrize("source", EXAMPLES, ids=name_of)
def test_all_ranks_end(tmp_path, source):
    """Rank 0 hears in mid-phase that nobody wants it any more, and the others with it; with the worker all of them go."""
    job = write_program(tmp_path, source, JOB, steps="100000")
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
