"""Fragments of a trainer's model: weights are exchanged while a phase goes on, as with the built-in networks."""
import math

import numpy as np
import pytest

from common import read_safetensors, wait_until
from swarm import running
from test_external import HERE, write_program

PROGRAM = f"{HERE}/trainers/fragments.py"
JOB = """name: fragments
data: {{{data}}}
model: {{type: external{context}}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}, MODE={mode}{env}]}}
train: {{batch: 1}}
recipe: {{replicas: {replicas}}}
outer: {{rounds: 3, steps: {steps}, fragments: 2, delay: {delay}, mix: {mix}, lr: {lr}, momentum: {momentum}, warmup: 0, ema: 0}}
wire: {{up: f32, down: f32}}
"""
NONE, TEXTS = "kind: none", "kind: texts, path: tales.jsonl, holdout: 0.1, shard_samples: 32"
FRAGMENTS = ("ab", "cd")  # two tensors each, as the model has them in this order
ROUNDS, STEPS, DELAY, MIX, LR, MOMENTUM = 3, 6, 1, 0.5, 0.7, 0.9


def train_plainly():
    """Trains two replicas in one process: {(replica, step, kind): weights}, and the last versions."""
    seen, replicas = {}, [{n: np.zeros(8, np.float32) for n in "abcd"} for _ in range(2)]
    theta, momentum = ({n: np.zeros(8, np.float32) for n in "abcd"} for _ in range(2))
    due = {math.ceil((f + 1) * (STEPS - DELAY) / len(FRAGMENTS)): f for f in range(len(FRAGMENTS))}
    for n in range(1, ROUNDS * STEPS + 1):
        at = (n - 1) % STEPS + 1
        for r, w in enumerate(replicas):
            if at == 1:
                seen[r, n - 1, "begin"] = {k: v.copy() for k, v in w.items()}
            noise = np.random.default_rng([r, n])
            for value in w.values():
                value += noise.normal(size=8).astype(np.float32) - np.float32(0.25) * value
        for name in FRAGMENTS[due[at]] if at in due else ():
            samples = float(at)
            mean = sum(samples * (theta[name].astype(float) - w[name].astype(float)) for w in replicas) / (2 * samples)
            momentum[name] = (MOMENTUM * momentum[name].astype(float) + mean).astype(np.float32)
            theta[name] = (theta[name].astype(float) - LR * (mean + MOMENTUM * momentum[name].astype(float))).astype(np.float32)
        if at == STEPS:  # what is due here is merged when the next phase begins
            seen.update({(r, n, "step"): {k: v.copy() for k, v in w.items()} for r, w in enumerate(replicas)})
        for name in FRAGMENTS[due[at - DELAY]] if at - DELAY in due else ():
            for w in replicas:
                w[name][:] = MIX * w[name].astype(float) + (1 - MIX) * theta[name].astype(float)
        if at < STEPS:
            seen.update({(r, n, "step"): {k: v.copy() for k, v in w.items()} for r, w in enumerate(replicas)})
    return seen, theta


def test_as_in_one_process(tmp_path):
    """Two replicas with a delay, mixing and Nesterov's momentum: the weights after every step and the last versions are equal to the bit."""
    job = write_program(tmp_path, PROGRAM, JOB, data=NONE, context="", log=str(tmp_path), mode="noise", env="", replicas=2, steps=STEPS, delay=DELAY, mix=MIX, lr=LR, momentum=MOMENTUM)
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two"):
            s.worker(name, "--allow-trainers")
        s.joined("one", "two")  # one alone trains a replica to its end, without the other's version
        told = s.submit(job)
        s.wait_job(told, "done", 60)
        assert s.skerry("export", told, "--out", tmp_path / "model", "--raw").returncode == 0
    seen, theta = train_plainly()
    for (replica, n, kind), weights in seen.items():
        there = np.load(tmp_path / f"{replica}-{n}-{kind}.npz")
        assert all(np.array_equal(there[name], weights[name]) for name in "abcd"), (replica, n, kind)
    model = read_safetensors(tmp_path / "model" / "model.safetensors")
    assert all(np.array_equal(model[name], theta[name]) for name in "abcd")


def lose_end(folder):
    """Leaves the directory of a worker that was killed after it kept a later end and before it reported it."""
    end, = folder.glob("**/external-*.end")
    end.rename(f"{end}.spare")
    end.write_bytes(b"no safetensors file")


@pytest.mark.parametrize("kill, at, first", [("nobody", 0, 10), ("trainer", 7, 12), ("worker", 7, 12), ("worker", 5, 10)])
def test_replicas_keep_their_weights(tmp_path, kill, at, first):
    """A step adds one, and a merge returns the weights that were sent: between phases, also with evaluations, a fragment keeps its training
    since then, and the optimiser goes on.  If a trainer or a worker is killed after step 3 of 4, the phase begins anew with the first fragment
    as it was at step 2, where it was contributed and merged already: it has two more steps, both visible at the job's end.  Killed after
    step 1 the phase begins with the end of the phase before, also if the last kept state is not such an end."""
    job = write_program(tmp_path, PROGRAM, JOB + "eval: {{every: 1, samples: 8}}\n", data=TEXTS, context=", context: 64", log=str(tmp_path), mode="count", env=f", KILL={kill}, KILL_AT={at}", replicas=1, steps=4, delay=0, mix=0, lr=1, momentum=0)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        if kill == "worker":
            wait_until(lambda: s.processes["one"].poll() is not None, 40, "the worker to be killed")
            if at == 5:
                lose_end(tmp_path)
            s.worker("one", "--allow-trainers")
        done = s.wait_job(told, "done", 60)
        assert [m["version"] for m in done["modules"]] == [3, 3]
        assert s.skerry("export", told, "--out", tmp_path / "model", "--raw").returncode == 0
    assert (tmp_path / "killed").exists() == (kill != "nobody")
    began = {n: bool(np.load(tmp_path / f"0-{n}-begin.npz")["goes_on"]) for n in (0, 4, 8)}
    assert began == {0: False, 4: kill == "nobody", 8: True}
    model = read_safetensors(tmp_path / "model" / "model.safetensors")
    assert {name: set(model[name]) for name in "abcd"} == {"a": {first}, "b": {first}, "c": {12}, "d": {12}}


def test_who_cannot_is_refused(tmp_path):
    """A trainer whose hello does not offer to exchange weights is refused with one sentence, before anything begins."""
    job = write_program(tmp_path, PROGRAM, JOB, data=NONE, context="", log=str(tmp_path), mode="count", env=", ALONE=1", replicas=1, steps=4, delay=0, mix=0, lr=1, momentum=0)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        said = "the trainer cannot exchange weights in mid-phase, which outer.fragments"
        wait_until(lambda: any(said in t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 20, said)
    assert not list(tmp_path.glob("*.npz"))


def test_writes_what_was_handed_over(tmp_path):
    """A trainer that does so between phases loses the attempt, with the reason, but neither the worker nor the job."""
    job = write_program(tmp_path, PROGRAM, JOB, data=NONE, context="", log=str(tmp_path), mode="count", env=f", WRITES={tmp_path}/seen", replicas=1, steps=4, delay=0, mix=0, lr=1, momentum=0)
    with running(tmp_path / "swarm") as s:
        worker = s.worker("one", "--allow-trainers")
        told = s.submit(job)
        said = "wrote its weights after it had handed them over"
        wait_until(lambda: any(said in t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 20, said)
        (tmp_path / "seen").touch()
        s.wait_job(told, "done", 40)
        assert worker.poll() is None
