"""A language model through real daemons: it is trained and writes texts, which arrive as they are written."""
import json
import os
import random
import re
import subprocess

import pytest

from common import BIN, HANGS, read_safetensors, skerry, wait_until, write_job
from openapi import OpenApi
from swarm import running

JOB = """name: tale
seed: 5
data: {path: tales.jsonl, holdout: 0.1, shard_samples: 32}
model: {type: llama, dim: 32, depth: 2, heads: 4, kv_heads: 2, context: 64}
train: {batch: 8, lr: 3e-3, precision: f32}
recipe: {name: diloco, replicas: 2}
outer: {rounds: 3, steps: 10, warmup: 0}
sample: {prompt: "the sea", tokens: 30}
eval: {every: 1, samples: 20}
"""
WORDS = "the a sea rock bird wind of on under saw heard long grey tide light".split()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A swarm in which a text job has ended, its id, and all events."""
    folder = tmp_path_factory.mktemp("tale")
    rng = random.Random(3)
    with open(folder / "tales.jsonl", "w", encoding="utf-8") as f:
        for _ in range(200):
            f.write(json.dumps({"text": " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 30)))}) + "\n")
    (folder / "job.yaml").write_text(JOB)
    with running(folder / "swarm") as s:
        s.worker("one")
        s.worker("two")
        s.seen = s.events()
        s.told = s.submit(folder / "job.yaml")
        s.wait_job(s.told, "done")
        yield s


def ask(s, **keys):
    """Asks for a text: its finished task, and the events of its pieces."""
    answer = s.post(f"/v1/jobs/{s.told}/sample", keys)
    assert answer.status_code == 202, answer.text
    task = answer.json()["task"]

    def done():
        t = s.get(f"/v1/tasks/{task}").json()
        assert t["state"] not in ("failed", "cancelled"), t["reason"]
        return t if t["state"] == "done" else None
    wait_until(done, 60, "the text")
    wait_until(lambda: [x for x in s.seen.of("sample") if x["task"] == task], 20, "all that was told of it")
    text = [x for x in s.job(s.told)["samples"] if x["task"] == task][0]["text"]
    return text, [e for e in s.seen.of("text") if e["task"] == task]


def test_it_learns(told):
    job = OpenApi(told).call("getJob", params={"id": told.told}).json()
    assert job["vocab"] == 257 and job["tokenizer"] is None
    losses = [h["eval_loss"] for h in job["history"]]
    assert losses[-1] < losses[0] < 6, losses  # nats per byte
    assert job["samples"][-1]["text"].startswith("the sea") and job["samples"][-1]["blob"] is None


def test_a_text_comes_in_pieces(told):
    for seed in range(20):  # until one is long; top_p leaves out the end, which is rarer than letters
        text, pieces = ask(told, prompt="a rock", tokens=3000, temperature=1.0, top_p=0.7, seed=seed)
        if len(text) > 2000:
            break
    assert text.startswith("a rock") and len(text) > 2000
    assert len(pieces) > 3
    at = 0
    for p in pieces:
        OpenApi(told).validate_named(p, "EventText")
        assert p["offset"] == at and p["job"] == told.told
        at += len(p["text"].encode())
    assert text.startswith("".join(p["text"] for p in pieces))


def test_texts_repeat_with_their_seed(told):
    one, two, other = (ask(told, prompt="the ", tokens=60, temperature=1.0, seed=seed)[0] for seed in (1, 1, 2))
    assert one == two != other


def test_greedy_needs_no_luck(told):
    assert ask(told, prompt="of", tokens=40, temperature=0, seed=1)[0] == ask(told, prompt="of", tokens=40, temperature=0, seed=2)[0]


def test_of_one_long_text_spans_are_held_out(told, tmp_path):
    rng = random.Random(4)
    (tmp_path / "book.txt").write_text(" ".join(rng.choice(WORDS) for _ in range(80000)))
    (tmp_path / "job.yaml").write_text(JOB.replace("tales.jsonl, holdout: 0.1", "book.txt, holdout: 0.05"))
    done = told.skerry("check", tmp_path / "job.yaml")
    assert done.returncode == 0, done.stderr
    documents, pieces, tokens, held = map(int, re.search(r"(\d+) documents?, (\d+) pieces, (\d+) tokens \(held out: .*?(\d+) tokens\)", done.stdout).groups())
    assert documents == 1 and abs(held - 0.05 * tokens) <= 4096 * 1.05, "a span more or less"
    job = told.wait_job(told.submit(tmp_path / "job.yaml"), "done")
    assert job["dataset"]["samples"] == pieces and 0 < job["dataset"]["holdout"] < pieces / 10
    assert job["eval_loss"] > 0
    for epoch in job["epochs"]:
        assert epoch["total"] == pieces - job["dataset"]["holdout"]
        assert epoch["done"] + epoch["leased"] + epoch["pending"] == epoch["total"]
    assert sum(epoch["done"] for epoch in job["epochs"]) == sum(r["samples"] for r in job["history"]) > 0


def test_exported(told, tmp_path):
    done = told.skerry("export", told.told, "--out", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    lone = told.skerry("export", told.told, "--path", 1, "--out", tmp_path / "none")
    assert lone.returncode == 1 and "there is no path 1: the job has only path 0" in lone.stderr, lone.stderr
    names = {p.name for p in (tmp_path / "model").iterdir()}
    assert names == {".skerry", "README.md", "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    config = json.load(open(tmp_path / "model" / "config.json"))
    assert config["architectures"] == ["LlamaForCausalLM"] and config["vocab_size"] == 257
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "model").iterdir()}
    pictures = told.submit(write_job(tmp_path / "pictures", rounds=1, steps=1, replicas=1))
    told.wait_job(pictures, "done")
    done = told.skerry("export", pictures, "--out", tmp_path / "model")
    assert done.returncode == 1 and f"holds the model of job {told.told} (" in done.stderr and "--out" in done.stderr, done.stderr
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "model").iterdir()} == before
    done = told.skerry("export", told.told, "--out", tmp_path / "model")
    assert done.returncode == 0, "the same again"
    done = skerry("run", tmp_path / "pictures" / "job.yaml", "--out", tmp_path)
    assert done.returncode == 1 and "is of another kind of model" in done.stderr, "said before the work"


def test_a_log_has_what_was_said_in_its_order(told):
    """If both outputs go to one file, printed lines must not wait for the end."""
    done = subprocess.run([f"{BIN}/skerry", "submit", f"{told.folder}/../job.yaml", "--watch"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=HANGS, env={**os.environ, "SKERRY_TOKEN": told.token})
    assert done.returncode == 0 and 0 < done.stdout.index("is submitted") < done.stdout.index("done after round"), done.stdout


def test_a_text_goes_into_a_file_too(told, tmp_path):
    done = told.skerry("sample", told.told, "--tokens", "8", "--out", tmp_path / "said.txt")
    assert done.returncode == 0 and done.stdout.startswith("the sea"), done.stderr
    assert (tmp_path / "said.txt").read_text(encoding="utf-8") == done.stdout


def test_each_path_is_exported(told, tmp_path):
    """Two paths share the first level and each have their own second one; there is no third path."""
    job = (tmp_path / "job.yaml")
    tales = os.path.join(os.path.dirname(told.folder), "tales.jsonl")
    job.write_text(JOB.replace("tales.jsonl", tales).replace("{name: diloco, replicas: 2}", "{name: dipaco, levels: [1, 2]}"))
    number = told.submit(job)
    paths = told.wait_job(number, "done")["path_list"]
    assert [len(p["modules"]) for p in paths] == [2, 2]
    models = []
    for path in (0, 1):
        done = told.skerry("export", number, "--path", path, "--out", tmp_path / str(path))
        assert done.returncode == 0, done.stderr
        models.append(read_safetensors(tmp_path / str(path) / "model.safetensors"))
    assert models[0].keys() == models[1].keys()
    same = {k for k in models[0] if (models[0][k] == models[1][k]).all()}
    assert "model.layers.0.mlp.up_proj.weight" in same and "model.layers.1.mlp.up_proj.weight" not in same
    done = told.skerry("export", number, "--path", 2, "--out", tmp_path / "2")
    assert done.returncode == 1 and "there is no path 2: the job has the paths 0 to 1" in done.stderr
    done = told.skerry("export", number, "--out", tmp_path / "all")
    assert done.returncode == 0 and done.stdout == "".join(f"the model is in {tmp_path}/all-{path}/\n" for path in (0, 1)), done.stderr
    for path in (0, 1):
        one, of_all = tmp_path / str(path), tmp_path / f"all-{path}"
        assert sorted(os.listdir(of_all)) == sorted(os.listdir(one))
        assert all((of_all / p).read_bytes() == (one / p).read_bytes() for p in os.listdir(one))
    done = told.skerry("export", number, "--out", tmp_path / "all", "--json")
    assert json.loads(done.stdout) == {"job": number, "folders": [f"{tmp_path}/all-0", f"{tmp_path}/all-1"]}
