"""A training loop of accelerate becomes an island by one line."""
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
from common import HANGS  # noqa: E402
from swarm import running  # noqa: E402
from test_external import PACKAGE, write_tales  # noqa: E402

JOB = """name: accelerated
data: {{kind: texts, path: tales.jsonl, holdout: 0, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} accelerated.py, files: program, env: [PYTHONPATH={package}, OMP_NUM_THREADS=1]}}
train: {{batch: 8}}
recipe: {{replicas: 2, moments: travel}}
outer: {{rounds: 3, steps: 10}}
"""


def test_loop_of_accelerate(tmp_path):
    """A step of the job's batch has two micro-batches; the optimiser's state is kept; the loss falls."""
    (tmp_path / "program").mkdir()
    shutil.copy(HERE / "accelerated.py", tmp_path / "program")
    write_tales(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB.format(python=sys.executable, package=PACKAGE))
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(tmp_path / "job.yaml")
        job = s.wait_job(told, "done", 120)
        tasks = [t for t in s.get(f"/v1/tasks?job={told}").json()["items"] if t["kind"] == "train"]
    assert job["history"][-1]["loss"] < job["history"][0]["loss"] - 0.1, job["history"]
    assert [t["steps_done"] for t in tasks] == [10] * 6 and sum(e["done"] for e in job["epochs"]) == 6 * 80, (tasks, job["epochs"])


def test_trains_alone(tmp_path):
    done = subprocess.run([sys.executable, HERE / "accelerated.py"], env={"PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"},
                          cwd=tmp_path, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode == 0 and "step 10 of 10: loss" in done.stderr, done.stderr
