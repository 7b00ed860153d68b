"""Trainers of the user's through real daemons: one in C on libskerry, and what they do wrong."""
import json
import os
import random
import shutil
import subprocess

import pytest

from common import BIN, read_safetensors, wait_until
from swarm import running

BUILD = os.path.abspath(os.environ.get("SKERRY_BUILD", "build"))
JOB = """name: bytes
seed: 5
data: {{kind: texts, path: tales.jsonl, holdout: 0.1, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: ./trainer-c, files: program}}
train: {{batch: 8}}
recipe: {{name: diloco, replicas: 2}}
outer: {{rounds: 3, steps: 10}}
eval: {{every: {eval_every}, samples: 20}}
"""
WORDS = "the a sea rock bird wind of on under saw heard long grey tide light".split()


def write_tales(folder, n=200):
    rng = random.Random(3)
    with open(folder / "tales.jsonl", "w", encoding="utf-8") as f:
        for _ in range(n):
            f.write(json.dumps({"text": " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 30)))}) + "\n")


def write_job(folder, text=JOB, **keys):
    write_tales(folder)
    (folder / "program").mkdir()
    shutil.copy(f"{BUILD}/examples/trainer-c", folder / "program" / "trainer-c")
    (folder / "job.yaml").write_text(text.format(**{"eval_every": 0, **keys}))
    return folder / "job.yaml"


def test_c_trainer(tmp_path):
    """Two replicas of a C program on two workers: it learns, and its contributions are those of any model."""
    job = write_job(tmp_path)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        s.worker("two", "--allow-trainers")
        told = s.submit(job)
        done = s.wait_job(told, "done")
        losses = [r["loss"] for r in done["history"]]
        assert losses[-1] < losses[0] - 0.3, losses
        assert done["eval_loss"] < 2.5, done["eval_loss"]
        workers = s.get("/v1/status").json()["workers"]
        assert all(w["tasks_failed"] == 0 for w in workers), workers
