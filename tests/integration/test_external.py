"""Trainers of the user's through real daemons, in C on libskerry and in Python."""
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from common import HANGS, make_dataset, read_safetensors, skerry, wait_until
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


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values()))


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
        done = s.wait_job(told, "done", 40)
        losses = [r["loss"] for r in done["history"]]
        assert losses[-1] < losses[0] - 0.3, losses
        assert done["eval_loss"] < 2.5, done["eval_loss"]
        workers = s.get("/v1/status").json()["workers"]
        assert all(w["tasks_failed"] == 0 for w in workers), workers
        drawn = s.skerry("sample", told, "-p", "the", "--remote", "--out", tmp_path / "drawn.txt")
        assert drawn.returncode != 0 and "has not said that it can draw" in drawn.stderr, drawn.stderr


def test_another_job_begins_anew(tmp_path):
    """A job with the trainer of the job before: it begins with what the trainer starts from, not with what that job has left there."""
    job = write_job(tmp_path)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        first, again = (s.wait_job(s.submit(job), "done", 40)["history"] for _ in range(2))
        assert first[-1]["loss"] < first[0]["loss"] - 0.3, first
        assert again[0]["loss"] == pytest.approx(first[0]["loss"], abs=0.01), (first, again)


PACKAGE = f"{BUILD}/python"
NUMPY = """name: numpy
seed: 5
data: {{kind: texts, path: tales.jsonl, holdout: 0.1, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}]}}
train: {{batch: 8}}
recipe: {{name: diloco, replicas: 2, moments: travel}}
outer: {{rounds: 3, steps: 10}}
sample: {{tokens: 20, prompt: "the "}}
"""
FAULTY = """name: faulty
data: {{kind: texts, path: tales.jsonl, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: "{command}", files: program, env: [PYTHONPATH={package}, MODE={mode}, ONCE={once}]{more}}}
train: {{batch: 4}}
recipe: {{replicas: 1}}
outer: {{rounds: 2, steps: 4}}
wire: {{up: f32, down: f32}}
"""
HERE = os.path.dirname(os.path.abspath(__file__))


def write_program(folder, source, text, **keys):
    write_tales(folder)
    (folder / "program").mkdir()
    shutil.copy(source, folder / "program" / "train.py")
    (folder / "job.yaml").write_text(text.format(package=PACKAGE, python=sys.executable, **{k: v.replace("PYTHON", sys.executable) if isinstance(v, str) else v for k, v in keys.items()}))
    return folder / "job.yaml"


def test_texts_read_alone_are_those_of_a_job(tmp_path):
    job = write_program(tmp_path, f"{HERE}/../../examples/trainer-numpy/train.py", NUMPY.replace("holdout: 0.1", "holdout: 0"))
    with open(tmp_path / "tales.jsonl", "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text": "\u00e4\r\n" * n}) + "\n" for n in range(100))
    done = skerry("check", job)
    assert done.returncode == 0, done.stderr
    read = "import sys, skerry; s = skerry.read_texts(sys.argv[1], 64); print(len(s), sum(len(x.tokens) for x in s), *s[0].tokens)"
    alone = subprocess.run([sys.executable, "-c", read, tmp_path / "tales.jsonl"], env={**os.environ, "PYTHONPATH": PACKAGE},
                           capture_output=True, text=True, check=True).stdout.split()
    assert re.search(r"(\d+) pieces, (\d+) tokens", done.stdout).groups() == tuple(alone[:2]) and alone[2:] == ["256", "256"], done.stdout


def test_micro_batches_alone_are_others(tmp_path):
    script = """
import numpy, skerry
samples = [skerry.Sample(bytes([i]), 0, False) for i in range(8)]
with skerry.join({"w": numpy.zeros(3, "f")}, alone=skerry.Alone(samples, steps=2, batch=4)) as island:
    for phase in island.phases():
        for n, batch in enumerate(phase.batches(batch=2), 1):
            print(*(s.data[0] for s in batch))
            if n % 2 == 0:
                phase.step(loss=1.0, samples=4)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, check=True, timeout=HANGS)
    assert sorted(done.stdout.split()) == sorted(map(str, range(8))), done.stdout


def test_state_of_a_card_is_for_any_machine():
    """Moments that travel may come from a machine with a card to one without."""
    script = """
import io, torch, skerry
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
with skerry.join(model, optimizer) as island:
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    own, torch.serialization.location_tag = torch.serialization.location_tag, lambda storage: "cuda:0"
    state = io.BytesIO()
    island._save(state)
    state.seek(0)
    torch.serialization.location_tag = own
    before = optimizer.state[model.weight]["exp_avg"].clone()
    island._load(state)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], before)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loop, said", [
    ("for _ in phase.limit(range(9)): pass", "phase.step() was not called in 1000 batches"),
    ("pass\nphase.lr_scale", "has left its island"),
])
def test_what_a_script_forgets_is_said(loop, said):
    script = f"import numpy, skerry\nwith skerry.join({{'w': numpy.zeros(3, 'f')}}) as island:\n  for phase in island.phases():\n    {loop}"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 1 and said in done.stderr, (done.returncode, done.stderr)


def test_the_package_says_that_its_library_is_missing(tmp_path):
    shutil.copytree(f"{HERE}/../../python/skerry", tmp_path / "skerry", ignore=shutil.ignore_patterns("*.so*"))
    (tmp_path / "skerry" / "libskerry.so").write_text("no library")  # one may be installed here
    done = subprocess.run([sys.executable, "-c", "import skerry"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "skerry needs libskerry.so.2" in said and "`make python`" in said, done.stderr


def test_numpy_trainer(tmp_path):
    """The Python package without PyTorch: it trains, evaluates and writes; one worker has two replicas in turn.  It has no state
    that could travel, which is said."""
    job = write_program(tmp_path, f"{HERE}/../../examples/trainer-numpy/train.py", NUMPY)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        done = s.wait_job(told, "done", 40)
        assert done["history"][-1]["loss"] < done["history"][0]["loss"] - 0.3
        assert done["eval_loss"] < 2
        assert done["samples"][-1]["text"].startswith("the ")
        assert s.log("one").count("moments: travel does nothing") == 1


GPT = """name: gpt
seed: 5
data: {{kind: texts, path: tales.jsonl, holdout: 0.1, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}]{more}}}
train: {{batch: 8}}
recipe: {{replicas: 2, moments: travel}}
outer: {{rounds: 2, steps: 5}}
"""


def test_pytorch_trainer(tmp_path):
    """A GPT: the optimiser's state travels with its replica, and the exported weights have the model's own names."""
    job = write_program(tmp_path, f"{HERE}/../../examples/trainer-gpt/train.py", GPT, more="")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        done = s.wait_job(told, "done", 40)
        assert done["history"][-1]["loss"] < done["history"][0]["loss"]
        assert done["eval_loss"] < 4.5
        assert s.skerry("export", told, "--out", str(tmp_path / "model")).returncode == 0
        weights = read_safetensors(tmp_path / "model" / "model.safetensors")
        assert weights["blocks.1.mlp.2.weight"].shape == (64, 256)


OWN = """name: own
data: {{kind: none}}
model: {{type: external, warm_start: begin}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}]}}
train: {{batch: 1}}
recipe: {{replicas: 2}}
outer: {{rounds: 4, steps: 25, lr: 1, momentum: 0, ema: 0}}
wire: {{up: f32, down: f32}}
sample: {{prompt: once}}
"""


LATE = """
import time, numpy, skerry
with skerry.join({"w": numpy.zeros(3, "f")}) as island:
    for phase in island.phases():
        time.sleep(1.5)
        while phase.more:
            phase.step(loss=1.0, samples=1)
"""


def test_a_phase_of_seconds_has_a_step(tmp_path):
    """However long it takes to load the weights and the first batch."""
    (tmp_path / "slow.py").write_text(LATE)
    job = write_program(tmp_path, tmp_path / "slow.py", OWN.replace(", warm_start: begin", "").replace("rounds: 4, steps: 25", "rounds: 1, seconds: 1")
                        .replace("sample: {{prompt: once}}\n", ""))
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 40)
        tasks = s.get(f"/v1/tasks?job={told}").json()["items"]
    assert [(t["steps_done"], t["failures"]) for t in tasks if t["kind"] == "train"] == [(1, 0)] * 2, tasks


def write_pieces(folder):
    """Weights in two files with an index, as save_pretrained writes them, and their companions."""
    (folder / "tokens").mkdir(parents=True)
    pieces = {"mean": "model-00001-of-00002.safetensors", "other": "model-00002-of-00002.safetensors"}
    values = {"mean": np.full(4, 7, np.float32), "other": np.ones(2, np.float32)}
    for name, file in pieces.items():
        write_safetensors(folder / file, {name: values[name]})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": pieces}))
    (folder.parent / "kept.json").write_text('{"model_type": "own"}')
    (folder / "config.json").symlink_to("../kept.json")  # as in the cache of a hub
    (folder / "tokens" / "tokenizer.json").write_text("{}")
    (folder / "training_args.bin").write_text("weights of another form stay")


def test_data_of_its_own(tmp_path):
    """Without shards: each replica reads its part; version 0 is the user's folder, whose other files come back with the
    export; buffers stay; the coordinator may end in the middle; the trainer also writes texts."""
    job = write_program(tmp_path, f"{HERE}/trainers/own_data.py", OWN)
    write_pieces(tmp_path / "begin")
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_round(told, 1, 40)
        s.kill("coordinatord")
        s.coordinator()
        assert s.wait_job(told, "done", 60)["samples"][-1]["text"] == "once, 200 tokens"
        assert s.skerry("sample", told, "-p", "sea", "--tokens", "7").stdout == "sea, 7 tokens\n"
        tokenizer = tmp_path / "model" / "tokens" / "tokenizer.json"
        tokenizer.parent.mkdir(parents=True)
        tokenizer.write_text("another's")
        refused = s.skerry("export", told, "--out", str(tmp_path / "model"))
        assert refused.returncode == 1 and "not of this job's export, such as tokens" in refused.stderr, refused.stderr
        assert os.listdir(tmp_path / "model") == ["tokens"] and tokenizer.read_text() == "another's"
        shutil.rmtree(tokenizer.parent)
        for _ in range(2):
            assert s.skerry("export", told, "--out", str(tmp_path / "model")).returncode == 0
    weights = read_safetensors(tmp_path / "model" / "model.safetensors")
    assert list(weights) == ["mean"]
    assert tokenizer.read_text() == "{}"
    there = {str(p.relative_to(tmp_path / "model")) for p in (tmp_path / "model").rglob("*") if p.is_file()}
    assert there == {".skerry", "model.safetensors", "config.json", "tokens/tokenizer.json"}
    assert (tmp_path / "model" / "config.json").read_text() == '{"model_type": "own"}'
    assert np.allclose(weights["mean"], [18, 19, 20, 21], atol=3), weights


TIMED = """name: timed
data: {{kind: none}}
model: {{type: external}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}]}}
train: {{batch: 1, warmup: 4, schedule: cosine}}
outer: {{rounds: 2, seconds: 1}}
"""


def test_bounded_by_time(tmp_path):
    """The schedule is over with the job's time, and the warm-up with its steps, as many as they are."""
    job = write_program(tmp_path, f"{HERE}/trainers/timed.py", TIMED, log=str(tmp_path))
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        s.wait_job(s.submit(job), "done", 40)
    first, last = (json.load(open(tmp_path / f"{r}.json")) for r in range(2))
    for begins, steps in [(1, first), (0.5, last)]:
        ahead = [0, 1]  # the phase's clock is so much ahead of the trainer's
        for i, (before, lr, after) in enumerate(steps):
            warm = min(1, (i + 1) / 4) if steps is first else 1
            at = 2 * (begins - lr / warm)
            assert -1e-6 < at < 1 + 1e-6, (i, lr)
            ahead = [max(ahead[0], at - after), min(ahead[1], at - before) if at < 1 else ahead[1]]
        assert ahead[0] < ahead[1] + 0.005, (ahead, steps)
        assert at > 0.5
    falls = [lr for _, lr, _ in first[4:] + last]
    assert falls == sorted(falls, reverse=True), falls


PATHS = """name: paths
seed: 5
data: {{kind: texts, path: tales.jsonl, holdout: 0.1, shard_samples: 16}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}], levels: [layers.0.*, layers.1.*]}}
train: {{batch: 4}}
recipe: {{name: dipaco, levels: [2, 2]}}
outer: {{rounds: 2, steps: 3, lr: 1, momentum: 0, ema: 0{more}}}
wire: {{up: f32, down: f32}}
eval: {{every: 0, samples: 8}}
"""


@pytest.mark.parametrize("more, phases", [("", 2), (", fragments: 2", 1)])  # that versions know the end of
def test_paths(tmp_path, more, phases):
    """DiPaCo with a trainer: four paths share the modules of two levels, tensors outside the levels are private, and each
    path learns from its part of the texts."""
    job = write_program(tmp_path, f"{HERE}/trainers/paths.py", PATHS, log=str(tmp_path), more=more)
    weights = []
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two"):
            s.worker(name, "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 60)
        for path in range(4):
            out = tmp_path / f"path-{path}"
            done = s.skerry("export", told, "--path", path, "--out", out)
            assert done.returncode == 0, done.stderr
            weights.append(read_safetensors(out / "model.safetensors"))
    for p, w in enumerate(weights):
        assert np.array_equal(w["embed.weight"], np.full(3, phases * (p + 1), np.float32)), (p, w)
        assert np.array_equal(w["layers.0.weight"], weights[p ^ 1]["layers.0.weight"])
        assert np.array_equal(w["layers.1.weight"], weights[p ^ 2]["layers.1.weight"])
    assert not np.array_equal(weights[0]["layers.0.weight"], weights[2]["layers.0.weight"])
    assert not np.array_equal(weights[0]["layers.1.weight"], weights[1]["layers.1.weight"])
    seen = [{tuple(t) for r in range(2) for t in json.load(open(tmp_path / f"{p}-{r}.json"))} for p in range(4)]
    assert all(seen[a].isdisjoint(seen[b]) for a in range(4) for b in range(a)), "two paths learnt from one text"


EXPERTS = """name: experts
seed: 5
data: {{kind: images, path: data, holdout: 0, shard_samples: 16}}
model: {{type: external, warm_start: begin.safetensors}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}]}}
train: {{batch: 8}}
recipe: {{name: ddm, experts: 2}}
outer: {{rounds: 2, steps: 3, ema: 0}}
wire: {{up: f32, down: f32}}
"""


def test_experts(tmp_path):
    """DDM with a trainer: two experts that never exchange a byte, each with its cluster of the pictures' pixels; no router. They begin
    with the user's weights, which give no features."""
    job = write_program(tmp_path, f"{HERE}/trainers/experts.py", EXPERTS, log=str(tmp_path))
    write_safetensors(tmp_path / "begin.safetensors", {"seen": np.full(1, 100, np.float32)})
    make_dataset(tmp_path / "data", images=96)
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two"):
            s.worker(name, "--allow-trainers")
        told = s.submit(job)
        s.wait_job(told, "done", 60)
        for path in range(2):
            done = s.skerry("export", told, "--path", path, "--out", tmp_path / f"path-{path}")
            assert done.returncode == 0, done.stderr
            weights = read_safetensors(tmp_path / f"path-{path}" / "model.safetensors")
            assert weights["seen"] == 100 + 2 * 3 * 4, weights  # rounds, steps, half of train.batch
    seen = [{h for r in range(2) for h in json.load(open(tmp_path / f"{p}-{r}.json"))} for p in range(2)]
    assert seen[0] and seen[1] and seen[0].isdisjoint(seen[1])


BUFFERS = """name: buffers
data: {{kind: none}}
model: {{type: external}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, LOG={log}, OMP_NUM_THREADS=1], buffers: {buffers}}}
train: {{batch: 1}}
recipe: {{replicas: 2}}
outer: {{rounds: 2, steps: 3}}
"""


def test_buffers(tmp_path):
    """BatchNorm's running mean, variance and count: each round begins with their mean, or those of the first replica, to
    the bit over 4-bit wires, whatever momentum the weights have; an export has them with their own types."""
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        for buffers in ("mean", "first"):
            folder = tmp_path / buffers
            folder.mkdir()
            job = write_program(folder, f"{HERE}/trainers/batch_norm.py", BUFFERS, log=str(folder), buffers=buffers)
            told = s.submit(job)
            s.wait_job(told, "done", 40)
            done = s.skerry("export", told, "--out", folder / "model")
            assert done.returncode == 0, done.stderr
            phases = {(r, k): json.load(open(folder / f"{r}-{k}.json")) for r in range(2) for k in range(2)}
            for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
                ends = [np.array(phases[0, k][1][name], np.float64) for k in range(2)]
                assert not np.array_equal(*ends), "the replicas ought to differ"
                want = ends[0] if buffers == "first" else sum(ends) / 2
                for k in range(2):
                    assert np.array_equal(phases[1, k][0][name], np.float32(want)), (buffers, name, k)
            weights = read_safetensors(folder / "model" / "model.safetensors")
            assert set(weights) == {"0.weight", "0.bias", "0.running_mean", "0.running_var", "0.num_batches_tracked", "1.weight"}
            counts = [phases[1, k][1]["0.num_batches_tracked"] for k in range(2)]
            assert weights["0.num_batches_tracked"].dtype == np.int64
            assert weights["0.num_batches_tracked"] == (counts[0] if buffers == "first" else sum(counts) // 2)


COUNTED = """name: counted
seed: 5
data: {{kind: texts, path: tales.jsonl, holdout: 0, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, TEXTS={texts}, STEP_S={step_s}{kills}]}}
train: {{batch: 4}}
recipe: {{replicas: 4}}
outer: {{rounds: {rounds}, steps: {steps}, lr: 1, momentum: 0, ema: 0{outer}}}
wire: {{up: f32, down: f32}}
"""


def count_samples(s, folder, texts, rounds, steps, step_s, disturb, kills="", outer=""):
    """Trains a job of four replicas whose weights count the samples, while disturb(told) causes faults.  Returns how often
    the applied phases have seen each text, and the ledger's epochs.  Every round adds a quarter of its replicas' counts,
    which is exact in f32."""
    folder.mkdir()
    job = write_program(folder, f"{HERE}/trainers/counted.py", COUNTED, texts=texts, rounds=rounds, steps=steps, step_s=step_s,
                        kills=kills, outer=outer)
    with open(folder / "tales.jsonl", "w", encoding="utf-8") as f:
        for i in range(texts):
            f.write(json.dumps({"text": f"{i:04} {WORDS[i % len(WORDS)]}"}) + "\n")
    told = s.submit(job)
    disturb(told)
    done = s.wait_job(told, "done", 120)
    assert s.skerry("export", told, "--out", folder / "model").returncode == 0
    return 4 * read_safetensors(folder / "model" / "model.safetensors")["seen"], done["epochs"]


def miscounted(seen, epochs):
    """The difference between the trainers' count of samples and the ledger's: each sample once for each closed epoch, and
    as many of the open one as the ledger says."""
    closed = sum(e["done"] == e["total"] for e in epochs)
    begun = sum(e["done"] for e in epochs if e["done"] < e["total"])
    extra = seen - closed
    return float(np.abs(extra - (extra == 1)).sum() + abs((extra == 1).sum() - begun))


def test_exact_samples(tmp_path):
    """Three workers, one of which is killed in mid-phase in each round: the applied phases have seen each sample as often
    as the ledger says.  make bench-trainers runs this for longer."""
    kills, again = tmp_path / "kills", []
    kills.mkdir()
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two", "three"):
            s.worker(name, "--allow-trainers")

        def start_again(told):
            def over():
                for name in ("one", "two", "three"):
                    if s.processes[name].poll() is not None:
                        again.append(name)
                        s.worker(name, "--allow-trainers")
                return s.job(told)["state"] == "done"
            wait_until(over, 40, "the job to be done")
        seen, epochs = count_samples(s, tmp_path / "job", 300, 4, 25, 0.01, start_again, f", KILLS={kills}")
    assert len(again) == 4, again
    assert seen.sum() == 4 * 4 * 25 * 4
    assert miscounted(seen, epochs) == 0, (seen, epochs)


SLOW = """name: slow
data: {{kind: none}}
model: {{type: external}}
trainer: {{command: {python} train.py, files: program, env: [PYTHONPATH={package}, MARKS={marks}, START_S={start}, FIRST_S={first}]}}
train: {{batch: 1}}
recipe: {{replicas: 2}}
outer: {{rounds: 1000, steps: 20}}
"""


@pytest.mark.parametrize("start, first", [("15", "0"), ("0", "15")], ids=["to start", "for its first step"])
def test_takes_longer_than_a_phase(tmp_path, start, first):
    """Phases take a fifth of a second, and the second worker's trainer needs far longer for its first step: the phase goes
    to the other worker, but the trainer stays, and does its part of the next ones."""
    (tmp_path / "marks").mkdir()
    job = write_program(tmp_path, f"{HERE}/trainers/slow.py", SLOW, marks=str(tmp_path / "marks"), start=start, first=first)
    with running(tmp_path / "swarm") as s:
        s.worker("one", "--allow-trainers")
        told = s.submit(job)
        s.wait_round(told, 3)
        s.worker("two", "--allow-trainers")
        two = lambda: next((w for w in s.get("/v1/workers").json()["items"] if w["name"] == "two"), None)  # noqa: E731
        wait_until(lambda: two() and two()["tasks_done"] >= 5, 30, "the second worker to take part")
        assert "it has been at work for" in s.log("coordinatord") and two()["tasks_failed"] == 0
        assert len(os.listdir(tmp_path / "marks")) == 2


def test_async(tmp_path):
    """Without rounds: three workers do the phases of four replicas.  A quarter of each phase's count is applied by itself, less of
    one that is further behind than others, or the phase is too late and repeated; and every sample counts as often as the ledger says."""
    with running(tmp_path / "swarm") as s:
        for name in ("one", "two", "three"):
            s.worker(name, "--allow-trainers")
        seen, epochs = count_samples(s, tmp_path / "job", 300, 2, 25, 0, lambda told: None, outer=", async: true")
        made = [v["provenance"] for v in s.get("/v1/modules").json()["items"][0]["versions"] if v["version"] > 0]
    assert sum(c["samples"] for m in made for c in m["contributions"]) == 4 * 2 * 25 * 4
    counted = sum(c["samples"] * m["scale"] for m in made for c in m["contributions"])
    assert abs(seen.sum() - counted) < 0.01, (seen.sum(), counted)
    if all(m["scale"] == 1 for m in made):
        assert miscounted(seen, epochs) == 0, (seen, epochs)


def test_the_wheel_tells_its_licence():
    wheel = next(pathlib.Path(BUILD, "python").glob("skerry-*.whl"))
    with zipfile.ZipFile(wheel) as f:
        told = f.read(next(name for name in f.namelist() if name.endswith("/METADATA"))).decode()
    assert "\nLicense: Apache-2.0\n" in told, told
