"""skerry watch --tensorboard: TensorBoard's own reader finds each point once, however often `skerry watch` was interrupted."""
import glob
import io
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from common import BIN, HANGS, wait_until  # noqa: E402
from swarm import running  # noqa: E402


def read(run):
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    return events


def records_of(raw):
    """The records of an event file, each with its frame."""
    while raw:
        n = 16 + struct.unpack("<Q", raw[:8])[0]
        yield raw[:n]
        raw = raw[n:]


def metrics(s, job):
    return [json.loads(line) for line in s.get(f"/v1/jobs/{job}/metrics").text.splitlines()]


def points(events, tag):
    return sorted((e.step, e.value) for e in events.Scalars(tag))


def expected(records, value, tag_of):
    """{tag: [(step, value)]} of the records that have this value, in f32 as in events."""
    out = {}
    for r in records:
        if r[value] is not None:
            out.setdefault(tag_of(r), []).append((r["step"], pytest.approx(r[value], rel=1e-6)))
    return {tag: sorted(p, key=lambda x: x[0]) for tag, p in out.items()}


def check_all(s, job, run):
    """Every point on the coordinator's record is in the events, once."""
    events, records, about = read(run), metrics(s, job), s.job(job)
    kinds = {k: [r for r in records if r["kind"] == k] for k in ("loss", "round", "eval")}
    end = {(r["path"], r["round"]): r["step"] for r in kinds["round"]}
    for r in kinds["eval"]:
        r["step"] = end.get((r["path"], r["round"]), 0)
    several = about["paths"] > 1
    part = lambda r: f"/path-{r['path']}" if several else ""  # noqa: E731
    want = expected(kinds["loss"], "loss", lambda r: f"loss{part(r)}/replica-{r['replica']}")
    want.update(expected([r for r in kinds["loss"] if r["replica"] == 0], "lr", lambda r: f"lr{part(r)}"))
    want.update(expected(kinds["round"], "loss", lambda r: f"loss{part(r)}/round"))
    for name in ("seconds", "bytes_up", "bytes_down"):
        want.update(expected(kinds["round"], name, lambda r, n=name: f"round{part(r)}/{n}"))
    want.update(expected(kinds["eval"], "eval_loss", lambda r: f"held_out{part(r)}"))
    assert set(events.Tags()["scalars"]) == set(want)
    for tag, told in want.items():
        assert points(events, tag) == told, tag
    return events, end


def watch(s, job, out, **kw):
    return subprocess.Popen([f"{BIN}/skerry", "watch", str(job), "--tensorboard", str(out)], env={**os.environ, "SKERRY_TOKEN": s.token},
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **kw)


def test_pictures_through_a_crash(tmp_path):
    out = tmp_path / "board"
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--throttle", "12")
        s.worker("two", "--throttle", "12")
        job = s.submit(rounds=8, steps=60, sample_every=2, eval_every=1)
        run = out / f"tiny-{job}"
        first = watch(s, job, out)
        state = run / ".skerry.json"
        wait_until(lambda: state.exists() and json.loads(state.read_text())["records"], 60, "the first losses")
        second = s.skerry("watch", job, "--tensorboard", out)
        assert second.returncode == 1 and "in use by process" in second.stderr
        first.send_signal(signal.SIGKILL)
        first.wait(HANGS)
        # What a crash leaves behind what the state vouches for: a whole record again, and half of one.
        (file,) = glob.glob(f"{run}/*tfevents*")
        assert s.job(job)["state"] == "running"
        records = list(records_of(open(file, "rb").read()))
        with open(file, "ab") as f:
            f.write(records[-1] + records[-1][:20])
        assert watch(s, job, out).wait(HANGS) == 0
        s.wait_job(job, "done")
        events, end = check_all(s, job, run)
        drawn = s.job(job)["samples"]
        assert sorted(e.step for e in events.Images("samples")) == sorted(end[(0, x["round"])] for x in drawn) and drawn
        for e in events.Images("samples"):
            assert Image.open(io.BytesIO(e.encoded_image_string)).size == (e.width, e.height)
        (spec,) = events.Tensors("job")
        assert spec.tensor_proto.string_val[0].decode() == f"```\n{s.job(job)['spec']}\n```\n"
        # again: nothing is new, so nothing is written
        before = {f: os.stat(f).st_mtime_ns for f in glob.glob(f"{run}/*tfevents*")}
        assert len(before) == 2
        assert s.skerry("watch", job, "--tensorboard", out).returncode == 0
        assert {f: os.stat(f).st_mtime_ns for f in glob.glob(f"{run}/*tfevents*")} == before
        # a later drawing comes into a third file
        assert s.skerry("sample", job, "--out", tmp_path / "more.png").returncode == 0
        assert s.skerry("watch", job, "--tensorboard", out).returncode == 0
        assert len(check_all(s, job, run)[0].Images("samples")) == len(drawn) + 1
        # a crash between the state that names a new file and its first event
        told = json.loads(state.read_text())
        state.write_text(json.dumps({**told, "file": "events.out.tfevents.9999999999.skerry", "opened_s": 9999999999, "bytes": 0}))
        assert s.skerry("watch", job, "--tensorboard", out).returncode == 0
        check_all(s, job, run)
        state.write_text("{")
        damaged = s.skerry("watch", job, "--tensorboard", out)
        assert damaged.returncode == 1 and "damaged" in damaged.stderr
        # events whose origin is not known stay as they are
        state.unlink()
        unknown = s.skerry("watch", job, "--tensorboard", out)
        assert unknown.returncode == 1 and "remove" in unknown.stderr


def test_texts_of_several_paths(tmp_path):
    rng = random.Random(3)
    with open(tmp_path / "tales.jsonl", "w", encoding="utf-8") as f:
        for _ in range(120):
            f.write(json.dumps({"text": " ".join(rng.choice("the sea rock bird wind".split()) for _ in range(20))}) + "\n")
    (tmp_path / "job.yaml").write_text(
        "name: tale\nseed: 5\ndata: {path: tales.jsonl, holdout: 0.1, shard_samples: 32}\n"
        "model: {type: llama, dim: 32, depth: 2, heads: 4, context: 64}\ntrain: {batch: 8, precision: f32}\n"
        "recipe: {name: dipaco, levels: [1, 2]}\nouter: {rounds: 2, steps: 5}\n"
        "sample: {prompt: the sea, tokens: 10}\neval: {every: 1, samples: 8}\n")
    with running(tmp_path / "swarm") as s:
        s.worker("one")
        done = s.skerry("submit", tmp_path / "job.yaml", "--json")
        assert done.returncode == 0, done.stderr
        job = json.loads(done.stdout.splitlines()[-1])["id"]
        assert watch(s, job, tmp_path / "board").wait(HANGS) == 0
        events, _ = check_all(s, job, tmp_path / "board" / f"tale-{job}")
        told = {e.tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"] if tag.startswith("samples")
                for e in events.Tensors(tag)}
        assert told == {x["text"] for x in s.job(job)["samples"]} and all(t.startswith("the sea") for t in told)
        assert "loss/path-1/round" in events.Tags()["scalars"]
