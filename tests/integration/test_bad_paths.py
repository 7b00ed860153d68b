"""Bad job files and data of mixtures, paths and texts: refused with one sentence, exit status 4, nothing left behind."""
import hashlib
import json
import os
import re
import struct

import numpy as np
import pytest

from common import HANGS, make_dataset, skerry, wait_until
from swarm import running

REFUSED = 4
IMAGES = """name: experts
data: {path: data, image_size: 16, holdout: 0.2, shard_samples: 32}
model: {patch: 4, dim: 32, depth: 2, heads: 2}
router: {dim: 16, depth: 1, heads: 1}
train: {batch: 12, precision: f32}
recipe: {name: ddm, experts: 3}
partition: {dims: 8, fine: 16}
outer: {rounds: 2, steps: 4}
sample: {count: 4, steps: 3, columns: 2}
"""
TEXT = """name: paths
data: {path: train.jsonl, holdout: 0.1, shard_samples: 32}
model: {type: llama, dim: 32, depth: 2, heads: 2, context: 64}
train: {batch: 4, precision: f32}
recipe: {name: dipaco, levels: [2, 2], reshard: [1]}
partition: {dims: 8}
outer: {rounds: 3, steps: 4}
eval: {every: 1}
"""
COLUMN = ("partition: {dims: 8, ", "partition: {features: column, column: dino, ")
TOKENIZER = ("holdout: 0.1,", "holdout: 0.1, tokenizer: tokenizer.json,")
WARM = ("context: 64", "context: 64, warm_start: start")


def shown(value):
    """The name of a case: its changes."""
    return value[1] if isinstance(value, tuple) else ""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder / "data", classes=2, images=48)
    with open(folder / "train.jsonl", "w", encoding="utf-8") as f:
        for i in range(80):
            f.write(json.dumps({"text": f"document {i} " * 12}) + "\n")
    return folder


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    """A swarm without workers: refusals need none."""
    with running(tmp_path_factory.mktemp("coordinator")) as s:
        yield s


def write(folder, data, text, *changes):
    """The job file with its data beside it; a change is (old, new)."""
    os.symlink(data / "data", folder / "data")
    (folder / "train.jsonl").write_bytes((data / "train.jsonl").read_bytes())
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def blobs(coordinator):
    return [f for _, _, files in os.walk(os.path.join(coordinator.data, "blobs")) for f in files]


def refused(done, words):
    assert done.returncode == REFUSED, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("skerry: ")]
    assert len(lines) == 1 and done.stdout == "", (done.stdout, done.stderr)
    for word in words:
        assert word in lines[0], lines[0]


def refused_everywhere(job, coordinator, words, tmp_path):
    """Checks that `check` and `submit` refuse the job, and leave neither a job nor a temporary file."""
    there = os.path.join(tmp_path, "tmp")
    os.makedirs(there)
    jobs = coordinator.get("/v1/jobs").json()["items"]
    refused(skerry("check", job, env={"TMPDIR": there}), words)
    refused(skerry("submit", job, env={"TMPDIR": there, "SKERRY_TOKEN": coordinator.token}), words)
    assert coordinator.get("/v1/jobs").json()["items"] == jobs
    assert os.listdir(there) == []


@pytest.mark.parametrize("text, change, words", [
    (IMAGES, ("batch: 12", "batch: 13"), ["train.batch is 13", "recipe.experts"]),
    (IMAGES, ("depth: 1, heads: 1", "depth: 1, heads: 1, classes: 2"), ["recipe.experts is 3", "2 classes"]),
    (IMAGES, ("experts: 3", "experts: 3, levels: [2, 2]"), ["recipe.levels", "dipaco"]),
    (IMAGES, ("experts: 3", "experts: 3, teacher: 1"), ["recipe.teacher", "distill"]),
    (IMAGES, ("name: ddm, experts: 3", "name: diloco, reshard: [1]"), ["recipe.reshard", "dipaco"]),
    (IMAGES, ("name: ddm, experts: 3", "name: diloco, experts: 3"), ["recipe.experts", "ddm"]),
    (IMAGES, ("depth: 2, heads: 2}", "depth: 2, heads: 2, kv_heads: 1}"), ["job.yaml:3", "model.kv_heads", "model.type is dit"]),
    (IMAGES, ("depth: 2, heads: 2}", "depth: 2, heads: 2, self_condition: 0.5}"), ["model.self_condition is 0.5", "recipe.name ddm"]),
    (IMAGES, ("depth: 2, heads: 2}", "depth: 2, heads: 2, self_condition: 1.5}"), ["job.yaml:3", "model.self_condition", "from 0 to 1"]),
    (TEXT, ("context: 64", "context: 64, self_condition: 0.5"), ["model.self_condition", "model.type is llama"]),
    (IMAGES, ("columns: 2}", "columns: 2, prompt: hello}"), ["sample.prompt", "only with texts"]),
    (IMAGES, ("steps: 4}", "steps: 4, nesterov_delay: 2}"), ["outer.nesterov_delay", "outer.async"]),
    (IMAGES, ("steps: 4}", "steps: 4, async: true, share_cap: 0.3}"), ["outer.share_cap", "outer.async"]),
    (IMAGES, ("steps: 4}", "steps: 4, async: true, grace: 2}"), ["outer.grace", "outer.seconds"]),
    (TEXT, ("eval: {every: 1}", "eval: {every: 1}\nsample: {strategy: top1}"), ["sample.strategy", "only with images"]),
    (IMAGES, ("name: ddm, experts: 3", "name: dipaco, levels: [2], reshard: [1]"), ["recipe.reshard", "llama"]),
    (IMAGES, ("name: ddm, experts: 3", "name: distill"), ["recipe.teacher is missing"]),
    (IMAGES, ("name: ddm", "name: dmm"), ["dmm", "dipaco"]),
    (IMAGES, ("count: 4", "strategy: topk, top: 4"), ["sample.top is 4", "3 experts"]),
    (IMAGES, ("steps: 4", "steps: 4, fragments: 3"), ["outer.fragments is 3", "2 blocks"]),
    (IMAGES, ("dims: 8", "dims: 8, features: ngrams"), ["job.yaml:7", "ngrams", "images"]),
    (IMAGES, ("dims: 8", "dims: 8, features: model"), ["model.warm_start"]),
    (IMAGES, ("dims: 8", "features: column"), ["partition.column is missing"]),
    (IMAGES, ("dims: 8", "dims: 8, balance: 0.5"), ["partition.balance", ">= 1"]),
    (IMAGES, ("path: data", "path: data, tokenizer: t.json"), ["data.tokenizer", "images"]),
    (TEXT, ("levels: [2, 2]", "levels: [2, 2, 2]"), ["recipe.levels has 3 levels", "2 blocks"]),
    (TEXT, ("levels: [2, 2]", "levels: [2, 0]"), ["job.yaml:5", "recipe.levels", "from 1 to 256"]),
    (TEXT, ("levels: [2, 2]", "levels: []"), ["recipe.levels is missing"]),
    (TEXT, ("reshard: [1]", "private_blocks: [2]"), ["recipe.private_blocks holds 2", "0 to 1"]),
    (TEXT, ("reshard: [1]", "private_blocks: [-1]"), ["job.yaml:5", "recipe.private_blocks"]),
    (TEXT, ("reshard: [1]", "top: 5"), ["recipe.top is 5", "4 paths"]),
    (TEXT, ("reshard: [1]", "reshard: [3]"), ["recipe.reshard holds 3", "outer.rounds (3)"]),
    (TEXT, ("name: dipaco, levels: [2, 2], reshard: [1]", "name: ddm"), ["ddm", "model.type dit"]),
    (TEXT, ("dims: 8", "dims: 8, chunk: 65"), ["partition.chunk is 65", "model.context (64)"]),
    (TEXT, ("path: train.jsonl", "path: data"), ["data holds no text"]),
    (TEXT, ("path: train.jsonl", "path: train.jsonl, text_field: body"), ["line 1", "body", "data.text_field"]),
    (TEXT, ("dims: 8", "features: column, column: dino"), ["train.jsonl, line 1", "dino", "missing"]),
    (TEXT, TOKENIZER, ["data.tokenizer", "tokenizer.json"]),
    (TEXT, WARM, ["model.warm_start", "is not there", "hf download"]),
], ids=shown)
def test_job_file(tmp_path, data, coordinator, text, change, words):
    job = write(tmp_path, data, text, change)
    before = blobs(coordinator)
    refused_everywhere(job, coordinator, words, tmp_path)
    assert blobs(coordinator) == before, "refused before anything is uploaded"


@pytest.mark.parametrize("text, change, words", [
    (IMAGES, ("experts: 3", "experts: 45, divide_batch: false"), ["45 partitions", "samples to train on"]),
    (TEXT, ("levels: [2, 2]", "levels: [32, 32]"), ["1024 partitions", "samples to train on"]),
    (TEXT, ("batch: 4", "batch: 4000"), ["train.batch is 4000", "pieces"]),
], ids=shown)
def test_too_few_samples(tmp_path, data, coordinator, text, change, words):
    refused_everywhere(write(tmp_path, data, text, change), coordinator, words, tmp_path)


def columns(folder, value):
    """value(i): the column of the i-th image, None for none."""
    whole = os.path.realpath(folder / "data")
    os.remove(folder / "data")
    for kind in sorted(os.listdir(whole)):
        os.makedirs(folder / "data" / kind)
        for name in sorted(os.listdir(os.path.join(whole, kind))):
            os.symlink(os.path.join(whole, kind, name), folder / "data" / kind / name)
            i = int(name.split(".")[0])
            if value(i) is not None:
                (folder / "data" / kind / name).with_suffix(".json").write_text(json.dumps({"dino": value(i)}))


@pytest.mark.parametrize("value, words", [
    (lambda i: None, ["no column 'dino'"]),
    (lambda i: [1.0, 2.0] if i != 30 else None, ["00030", "no column 'dino'"]),
    (lambda i: [1.0, 2.0] if i % 2 else [1.0], ["column 'dino'", "expected the same number"]),
    (lambda i: "near", ["column 'dino'", "not an array of numbers"]),
    (lambda i: [1e300], ["column 'dino'", "not finite"]),
])
def test_columns(tmp_path, data, coordinator, value, words):
    job = write(tmp_path, data, IMAGES, COLUMN)
    columns(tmp_path, value)
    refused_everywhere(job, coordinator, words, tmp_path)


@pytest.mark.parametrize("name, content, words", [
    ("train.jsonl", b"", ["train.jsonl has no documents"]),
    ("train.jsonl", b'{"text": "a"}\n{"text": \n' * 9, ["train.jsonl, line 2", "data.max_bad"]),
    ("train.jsonl", b'{"text": "a b"}\n{"text": 5}\n', ["train.jsonl, line 2", '"text"']),
    ("train.jsonl", b'{"text": "\xff\xfe"}\n', ["train.jsonl, line 1", "0xff"]),
    ("train.txt", b"", ["train.txt is empty"]),
    ("train.txt", b"a b", ["train.batch is 4", "1 piece of"]),
    ("train.bin", b"abc", ["train.bin", "odd number of bytes"]),
    ("train.jsonl.zst", b"no zstandard", ["train.jsonl.zst"]),
    ("tokenizer.json", b"", ["tokenizer.json, line 1"]),
    ("tokenizer.json", b'{"model": {"type": "Unigram"}}', ["Unigram", "expected BPE"]),
])
def test_files(tmp_path, data, coordinator, name, content, words):
    change = TOKENIZER if name == "tokenizer.json" else ("path: train.jsonl, holdout: 0.1", f"path: {name}, holdout: 0, max_bad: 0")
    job = write(tmp_path, data, TEXT.replace("eval: {every: 1}\n", ""), change)
    (tmp_path / name).write_bytes(content)
    refused_everywhere(job, coordinator, words, tmp_path)


def warm_start(folder, dim=32, vocab=257, **config):
    """A folder as save_pretrained writes it; its weights are checked after everything else."""
    os.makedirs(folder)
    values = dict(model_type="llama", hidden_size=dim, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                  intermediate_size=96, rms_norm_eps=1e-5, vocab_size=vocab, tie_word_embeddings=False)
    values.update(config)
    (folder / "config.json").write_text(json.dumps(values))
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + np.zeros(1, "<f4").tobytes())


@pytest.mark.parametrize("config, words", [
    (dict(dim=64), ["hidden_size 64", "model.dim is 32"]),
    (dict(vocab=50257), ["vocabulary of 50257", "data.tokenizer"]),
    (dict(attention_bias=True), ["attention_bias"]),
    (dict(model_type="gpt2"), ["'gpt2'", "LlamaForCausalLM"]),
    (dict(), ["model.safetensors has no tensor model.embed_tokens.weight"]),
])
def test_warm_starts(tmp_path, data, coordinator, config, words):
    job = write(tmp_path, data, TEXT, WARM)
    warm_start(tmp_path / "start", **config)
    refused_everywhere(job, coordinator, words, tmp_path)


def test_run_refuses_before_it_starts_anything(tmp_path, data):
    job = write(tmp_path, data, TEXT, ("levels: [2, 2]", "levels: [2, 2, 2]"))
    refused(skerry("run", job, "--out", tmp_path / "out"), ["recipe.levels has 3 levels"])
    assert not (tmp_path / "out").exists()


def test_what_only_the_coordinator_knows(tmp_path, data, coordinator):
    """Another job's experts, shards kept for routers: `check` cannot know, `submit` refuses."""
    distill = write(tmp_path, data, IMAGES, ("name: ddm, experts: 3", "name: distill, teacher: 9"))
    refused(coordinator.skerry("submit", distill), ["recipe.teacher is 9", "no such job"])
    (tmp_path / "job.yaml").write_text(TEXT.replace("shard_samples: 32", "shard_samples: 4096"))
    refused(coordinator.skerry("submit", tmp_path / "job.yaml"), ["recipe.reshard", "data.shard_samples"])
    assert coordinator.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("change, key", [(TOKENIZER, "tokenizer"), (WARM, "warm_start")])
def test_files_that_only_workers_read(tmp_path, change, key):
    """A client that does not check before it sends: the job is stalled while workers of one machine say so, and fails when one with another
    token agrees."""
    junk = os.urandom(2048)
    blob = {"sha256": hashlib.sha256(junk).hexdigest(), "size": len(junk)}
    with running(tmp_path) as s:
        place = s.post("/v1/uploads", blob).json()["url"]
        assert s.session.put(place if "://" in place else s.url + place, data=junk, timeout=HANGS).status_code == 201
        shard = {**blob, "samples": 10, "tokens": 400, "holdout": False}
        body = {"spec": TEXT.replace(*change), "vocab": 257, key: blob,
                "dataset": {"classes": [], "counts": [], "shards": [shard] * 4 + [{**shard, "holdout": True}], "bad": []}}
        job = s.post("/v1/jobs", body).json()["id"]
        s.worker("one")
        s.joined("one")
        wait_until(lambda: re.search("waits for a worker on another one, start one", s.job(job)["stalled"]), 60,
                   "the job to be stalled")
        assert "stalled: " in s.skerry("status", str(job)).stdout
        s.worker("two")
        s.worker_token = s.skerry("tokens", "--new", "worker", "--name", "other").stdout.strip()
        s.worker("three")
        s.joined("two", "three")
        assert s.wait_job(job, "failed", 90)["reason"].count(" task ") == 1


def test_samples_that_make_no_sense(tmp_path, coordinator):
    bad = skerry("sample", "1", "--prompt", os.fsdecode(b"\xff"), env={"SKERRY_TOKEN": coordinator.token})
    assert bad.returncode == 2 and "UTF-8" in bad.stderr
    for flag, expected in (("--sampler", "euler or heun"), ("--strategy", "top1, topk, full, nucleus, threshold or oracle")):
        bad = coordinator.skerry("sample", "1", flag, "no such sampler or strategy")
        assert bad.returncode == 2, bad.stderr
        assert bad.stderr == f"skerry: {flag} is 'no such sampler or strategy', expected {expected}\n"
    os.mkfifo(tmp_path / "pipe.png")
    bad = coordinator.skerry("sample", "1", "--out", tmp_path / "pipe.png")
    assert bad.returncode == 1 and "is a device or a pipe" in bad.stderr
    out = tmp_path / "model"
    gone = coordinator.skerry("export", "77", "--out", out)
    assert gone.returncode == 1 and "77" in gone.stderr and not out.exists()


def test_login_keeps_the_token_of_a_file(tmp_path, coordinator):
    env = {"XDG_CONFIG_HOME": str(tmp_path), "SKERRY_TOKEN": ""}
    for given in ("user.token", "@user.token"):
        assert skerry("login", given, env=env, cwd=coordinator.data).returncode == 0
        assert skerry("status", env=env, cwd=tmp_path).returncode == 0, "from another folder too"
    unset = skerry("login", "user.token", env={"XDG_CONFIG_HOME": "", "HOME": ""}, cwd=coordinator.data)
    assert unset.returncode == 1 and "neither XDG_CONFIG_HOME nor HOME is set" in unset.stderr, unset.stderr
    assert not os.path.exists(os.path.join(coordinator.data, ".config"))
