"""Numbers that a trainer reports become series of its job: on record, in event files, in the metrics."""
import glob
import json
import os
import pathlib
import struct

import pytest

from common import wait_until
from swarm import running
from test_external import HERE, write_program

JOB = """name: numbers
data: {{kind: texts, path: tales.jsonl, holdout: 0, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}{env}]}}
train: {{batch: 4}}
recipe: {{replicas: 2}}
outer: {{rounds: 2, steps: 6}}
"""
PROGRAM = f"{HERE}/trainers/numbers.py"


def series(s, told):
    """{(name, replica): {step: value}} of the coordinator's record."""
    out = {}
    for line in s.get(f"/v1/jobs/{told}/metrics").text.splitlines():
        record = json.loads(line)
        if record["kind"] != "loss":
            continue
        for name, value in record.get("numbers", {}).items():
            out.setdefault((name, record["replica"]), {})[record["step"]] = value
    return out


def event_values(run, tag):
    """The (step, value) pairs of a tag in the event files of a run."""
    out = []
    for path in glob.glob(str(run / "events*")):
        raw = pathlib.Path(path).read_bytes()
        while raw:
            size = struct.unpack("<Q", raw[:8])[0]
            event, raw = raw[12:12 + size], raw[16 + size:]
            if tag.encode() in event:
                at = event.index(tag.encode()) + len(tag)  # then simple_value, an f32; the step is a varint of field 2
                assert event[at] == 0x15 and event[9] == 0x10
                out.append((event[10], struct.unpack("<f", event[at + 1:at + 5])[0]))
    return sorted(out)


def test_numbers_become_series(tmp_path):
    """Each step of each replica as it was reported, also after a restart of the coordinator; values that are not finite are left out."""
    job = write_program(tmp_path, PROGRAM, JOB, env="")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 40)
        steps, want = range(1, 13), {}
        for replica in range(2):
            want["accuracy", replica] = {n: n / 64 + replica for n in steps}
            want["top-5", replica] = {n: pytest.approx(1 / n, rel=1e-8) for n in steps if n % 2 == 0}
            want["once.only", replica] = {3: -1e30}
        assert series(s, told) == want
        lines = s.get("/metrics").text.splitlines()
        newest = {line.split('number="')[1].split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith("skerry_job_number{")}
        assert newest["accuracy"] in (12 / 64, 12 / 64 + 1) and newest["top-5"] == pytest.approx(1 / 12) and newest["once.only"] == -1e30
        s.kill("coordinatord")
        s.coordinator()
        wait_until(lambda: s.job(told)["state"] == "done", 20, "the coordinator")
        assert series(s, told) == want
        assert s.skerry("watch", told, "--tensorboard", tmp_path / "events").returncode == 0
    run = tmp_path / "events" / f"numbers-{told}"
    for (name, replica), values in want.items():
        assert event_values(run, f"numbers/{name}/replica-{replica}") == [(n, pytest.approx(v if isinstance(v, float) else v.expected)) for n, v in values.items()]


def test_numbers_of_evaluations(tmp_path):
    """They are means over the held-out samples, one for each evaluation, and separate from numbers of steps with the same name."""
    job = write_program(tmp_path, PROGRAM, JOB.replace("holdout: 0,", "holdout: 0.1,") + "eval: {{every: 1, samples: 10}}\n", env="")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 40)
        records = [json.loads(line) for line in s.get(f"/v1/jobs/{told}/metrics").text.splitlines()]
        held_out = {r["round"]: r["numbers"] for r in records if r["kind"] == "eval"}
        want = {"accuracy": (7 * 7 + 3 * 10) / 10}  # batches of 7 and 3; 'own' is no number in the first of them
        assert held_out and all(numbers == want for numbers in held_out.values()), held_out
        assert series(s, told)["accuracy", 0] == {n: n / 64 for n in range(1, 13)}
        lines = s.get("/metrics").text.splitlines()
        assert [float(line.split()[-1]) for line in lines if line.startswith("skerry_job_held_out_number{")] == [want["accuracy"]]
        assert s.skerry("watch", told, "--tensorboard", tmp_path / "events").returncode == 0
    events = event_values(tmp_path / "events" / f"numbers-{told}", "numbers/accuracy/held_out")
    assert events == [(6 * round, pytest.approx(want["accuracy"])) for round in sorted(held_out)]


def test_an_evaluation_of_too_many(tmp_path):
    """Its task names the first number over the limit."""
    extra = ":".join(f"n{i}" for i in range(15))
    job = write_program(tmp_path, PROGRAM, JOB.replace("holdout: 0,", "holdout: 0.1,").replace("rounds: 2, steps: 6", "rounds: 1, steps: 1") + "eval: {{every: 1, samples: 10}}\n", env=f", 'EXTRA={extra}'")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        said = "'n14' is one number more than the 16 that a step can have"
        wait_until(lambda: any(t["kind"] == "eval" and said in t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 20, said)


def test_an_evaluation_by_a_library_that_checks_nothing(tmp_path):
    """Numbers that are not valid are left out, with one warning; the loss counts."""
    text = JOB.replace("holdout: 0,", "holdout: 0.1,").replace("rounds: 2, steps: 6", "rounds: 1, steps: 1")
    job = write_program(tmp_path, PROGRAM, text + "eval: {{every: 1, samples: 10}}\n", env=", RAW=1")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 40)
        records = [json.loads(line) for line in s.get(f"/v1/jobs/{told}/metrics").text.splitlines()]
        held_out, = [r for r in records if r["kind"] == "eval"]
        assert held_out["eval_loss"] == 2 and held_out["numbers"] == dict.fromkeys(["first", *(f"more{i}" for i in range(15))], 0.25)
        assert s.log("one").count("it is left out") == 1


@pytest.mark.parametrize("extra, said", [
    ("two words", "'two words' is no name of a number: expected 1 to 64 of A-Z a-z 0-9 . _ -, and neither . nor - first"),
    (":".join(f"n{i}" for i in range(15)), "'n14' is one number more than the 16 that a step can have"),
    (":".join(f"n{i}" for i in range(14)), "a number 'once.only' beside 16 others, which is one more than a task can have"),
])
def test_what_is_no_name(tmp_path, extra, said):
    """The task quotes a name that is not valid."""
    job = write_program(tmp_path, PROGRAM, JOB, env=f", 'EXTRA={extra}'")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        wait_until(lambda: any(said in t["reason"] for t in s.get(f"/v1/tasks?job={told}").json()["items"]), 20, said)
