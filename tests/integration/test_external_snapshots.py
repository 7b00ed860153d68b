"""Another worker continues a phase of a trainer at the last snapshot of the worker before."""
import signal

import numpy as np
import pytest

from common import read_safetensors, wait_until
from swarm import running
from test_external import HERE, write_program, write_tales

STEPS = 300
JOB = """name: saved
data: {{kind: texts, path: tales.jsonl, holdout: 0, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}, STEP_S={step_s}]}}
train: {{batch: 1}}
recipe: {{replicas: {replicas}}}
outer: {{rounds: 1, {length}, snapshot: {every}, lr: 1, momentum: 0, warmup: 0, ema: 0}}
wire: {{up: f32, down: f32}}
"""


def saved(s, told):
    """The steps of each phase in the coordinator's snapshots, by worker."""
    return {t["worker"]: t["saved_steps"] for t in s.get(f"/v1/tasks?job={told}").json()["items"] if t["kind"] == "train"}


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.mark.parametrize("how, every", [(signal.SIGKILL, 0.1), (signal.SIGTERM, 3600)], ids=["killed", "told"])
def test_goes_on(tmp_path, how, every):
    """After a kill: from a snapshot that was sent during the training.  After a notice: the worker saves at once, and no step is made twice."""
    job = write_program(tmp_path, f"{HERE}/trainers/saved.py", JOB, log=str(tmp_path), replicas=1, length=f"steps: {STEPS}", every=every, step_s=0.01)
    write_tales(tmp_path, 2 * STEPS)
    with running(tmp_path / "swarm") as s:
        one = s.worker("one", "--allow-trainers")
        told = s.submit(job)
        wait_until(lambda: any(saved(s, told).values()) if how == signal.SIGKILL else len(lines_of(tmp_path / "seen-0")) > 5, 20,
                   "something to save")
        one.send_signal(how)
        wait_until(lambda: one.poll() is not None, 20, "the worker to end")
        s.worker("two", "--allow-trainers")
        done = s.wait_job(told, "done", 40)
        assert s.skerry("export", told, "--out", tmp_path / "model", "--raw").returncode == 0
    at, = (int(p.stem[6:]) for p in tmp_path.glob("began-*.npz") if p.stem != "began-0")
    began = np.load(tmp_path / f"began-{at}.npz")
    assert 0 < at < STEPS and began["steps"] == STEPS - at
    assert set(began["a"]) == set(began["b"]) == {at}
    before, behind = lines_of(tmp_path / "seen-0"), lines_of(tmp_path / f"seen-{at}")
    assert len(before) == at if how == signal.SIGTERM else len(before) >= at
    assert len(set(before[:at] + behind)) == len(behind) + at == STEPS, "a sample was seen twice, or never"
    model = read_safetensors(tmp_path / "model" / "model.safetensors")
    assert set(model["a"]) == set(model["b"]) == {STEPS}
    assert sum(e["done"] for e in done["epochs"]) == STEPS


def test_the_last_one_counts(tmp_path):
    """If phases are bounded by time and each worker has one, no worker continues a lost one: its last snapshot is folded."""
    job = write_program(tmp_path, f"{HERE}/trainers/saved.py", JOB, log=str(tmp_path), replicas="auto", length="seconds: 15", every=0.1, step_s=0.1)
    write_tales(tmp_path, 2 * STEPS)
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two"):
            s.worker(name, "--allow-trainers")
        s.joined("one", "two")  # the round has as many phases as workers are here when it begins
        told = s.submit(job)
        wait_until(lambda: len(saved(s, told)) == 2 and all(n > 4 for n in saved(s, told).values()), 20, "two phases that are saved")
        s.kill("one")
        s.wait_job(told, "done", 40)
        reasons = [t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]]
        assert any("its last snapshot counts" in reason for reason in reasons), reasons
