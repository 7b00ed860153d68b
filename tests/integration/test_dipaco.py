"""DiPaCo through the whole system: a language model of 2 x 2 paths, routed twice."""
import json
import os
import random

import pytest

from common import read_safetensors, skerry

JOB = """name: paths
seed: 5
data: {{path: train.jsonl, holdout_path: valid.jsonl, shard_samples: 64}}
model: {{type: llama, dim: 32, depth: 2, heads: 2, kv_heads: 1, context: 64}}
train: {{batch: 4, lr: 2e-3, precision: f32}}
recipe: {{name: {recipe}{more}}}
partition: {{dims: 8}}
outer: {{rounds: {rounds}, steps: 4}}
wire: {{up: int8, down: int8}}
sample: {{prompt: "a = ", tokens: 12}}
eval: {{every: 1, samples: 64}}
"""
WORDS = {
    "code": "int return if while for x y = + ; ( ) { }".split(),
    "law": "Der Die Das Gesetz Absatz Satz und oder nicht nach Recht".split(),
    "verse": "moon river night song wind silver over under dream of".split(),
    "sums": "1 2 3 4 5 6 7 8 9 0 + - = * /".split(),
}


def write_text(folder, documents=160):
    rng = random.Random(3)
    for name, n in (("train", documents), ("valid", documents // 4)):
        with open(os.path.join(str(folder), name + ".jsonl"), "w", encoding="utf-8") as f:
            for i in range(n):
                words = WORDS[list(WORDS)[i % 4]]
                f.write(json.dumps({"text": " ".join(rng.choice(words) for _ in range(60))}) + "\n")


def pieces(path, context=64):
    """Pieces of at most `context` tokens and one that is only predicted, each of which begins with the last one of the piece before."""
    total = 0
    for line in open(path, encoding="utf-8"):
        tokens = len(json.loads(line)["text"].encode()) + 2  # with the ends
        total += len(range(0, tokens - 1, context))
    return total


def write(folder, recipe="dipaco", more=", levels: [2, 2], reshard: [2]", rounds=3):
    write_text(folder)
    path = os.path.join(str(folder), "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(JOB.format(recipe=recipe, more=more, rounds=rounds))
    return path


def run(folder, *options, workers=2, **keys):
    out = folder / "out"
    done = skerry("run", write(folder, **keys), "--workers", workers, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return json.load(open(out / "report.json", encoding="utf-8")), out


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return run(tmp_path_factory.mktemp("dipaco"))


def test_modules_are_shared_and_all_paths_end(paths):
    report, _ = paths
    assert len(report["job"]["modules"]) == 4
    assert all(m["version"] == 3 for m in report["job"]["modules"])
    assert [p["round"] for p in report["job"]["path_list"]] == [3, 3, 3, 3]
    # Two paths cross each module: half of what it is told comes from another path.
    assert all(m["bytes_from_others"] > 0 for m in report["job"]["modules"])


def test_texts_are_routed(paths):
    report, _ = paths
    assert report["job"]["generation"] == 2, "partitioned once at the start and once in mid-run"
    assert sum(p["samples"] > 0 for p in report["job"]["partitions"]) == 4
    assert 0 < report["job"]["bits_per_byte"] < 8.1


def test_one_dense_model_is_plain_diloco(tmp_path):
    """1 x 1 paths without a re-sharding are the same computation as DiLoCo (one partition, one module)."""
    models = []
    for name, keys in (("a", dict(more=", levels: [1]")), ("b", dict(recipe="diloco", more=""))):
        os.makedirs(tmp_path / name)
        run(tmp_path / name, workers=1, **keys)
        models.append(read_safetensors(tmp_path / name / "out" / "model" / "model.safetensors"))
    for k, v in models[0].items():
        assert (v == models[1][k]).all(), k


def test_private_blocks_and_overlap(tmp_path):
    report, _ = run(tmp_path, rounds=2, more=", levels: [2, 1], private_embeddings: true, top: 2, moments: travel")
    levels = {m["level"] for m in report["job"]["modules"]}
    assert levels == {0, 1, 2}
    private = [m for m in report["job"]["modules"] if m["level"] == 2]
    assert len(private) == 2 and all(m["bytes_from_others"] == 0 for m in private)
    total = sum(p["samples"] for p in report["job"]["partitions"])
    assert total == 2 * pieces(tmp_path / "train.jsonl"), "every piece of text is in two partitions"


def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    report, _ = run(tmp_path, "--drill", "1")
    assert report["job"]["state"] == "done"
    assert [m["version"] for m in report["job"]["modules"]] == [3] * 4


@pytest.mark.parametrize("more, says", [
    (", levels: [2, 2, 2]", "depth"),
    (", levels: [2, 2], private_blocks: [7]", "private_blocks"),
    (", levels: [2, 2], top: 5", "recipe.top"),
    ("", "recipe.levels"),
])
def test_bad_jobs_are_refused_with_a_sentence(tmp_path, more, says):
    done = skerry("run", write(tmp_path, more=more), "--workers", 1, "--out", tmp_path / "out")
    assert done.returncode in (1, 4), done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("skerry:")]
    assert len(last) == 1 and says in last[0], done.stderr
