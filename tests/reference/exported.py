"""Language models that `skerry run` exports, and the output of our decoder with them."""
import json
import os
import pathlib
import random
import subprocess
import sys

from dit import read_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve()
PROBE = BUILD / "release/tests/tools/worker/llama_probe"
os.environ.setdefault("SKERRY_BIN", str(BUILD / "bin"))
sys.path.insert(0, str(ROOT / "tests/integration"))
from common import skerry  # noqa: E402

JOB = """name: tale
seed: 5
data: {{path: tales.jsonl, holdout: 0.1, shard_samples: 32{data}}}
model: {{type: llama, dim: 48, depth: 2, heads: 4, kv_heads: 2, context: 64, rope_theta: 5000, tied: {tied}{more}}}
train: {{batch: 8, lr: 3e-3, precision: f32}}
recipe: {{name: diloco, replicas: 1}}
outer: {{rounds: 2, steps: {steps}}}
wire: {{up: f32, down: f32}}
sample: {{prompt: "The ", tokens: 12, temperature: 0}}
"""
SCALED = ", rope_scaling: {rope_type: llama3, factor: 4, original_max_position_embeddings: 32}"
WORDS = "the a sea rock bird wind of on under saw heard long grey tide light über ☃ 1907".split()


def write_tales(path, documents=120):
    rng = random.Random(3)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(documents):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 30)))
            f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def train(folder, tied, steps=12, more="", data=""):
    """Trains a job on made-up tales; returns folder/out/model."""
    write_tales(folder / "tales.jsonl")
    job = folder / "job.yaml"
    job.write_text(JOB.format(tied=str(tied).lower(), steps=steps, more=more, data=data))
    done = skerry("run", job, "--workers", "1", "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out" / "model"


def sizes_of(model):
    """The sizes of a folder's model, for the probe."""
    c = json.load(open(model / "config.json"))
    rope = c["rope_parameters"]
    sizes = [c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"],
             c["intermediate_size"], c["vocab_size"], c["max_position_embeddings"], int(c["tie_word_embeddings"]),
             rope["rope_theta"], c["rms_norm_eps"], c.get("head_dim") or 0,
             int(c["model_type"] == "qwen2"), int(c["model_type"] == "qwen3"), c.get("no_rope_layer_interval") or 0]
    if rope["rope_type"] == "llama3":
        sizes += [rope[key] for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")]
    if rope["rope_type"] == "linear":
        sizes += [rope["factor"], 1e30, 2e30, 1]
    return ",".join(map(str, sizes))


def ours(model, out, dtype="f32"):
    """(tokens, logits, greedy text) of our decoder with the weights of an exported folder."""
    subprocess.run([PROBE, "read", "cpu", dtype, sizes_of(model), model / "model.safetensors", out], check=True)
    return read_safetensors(out)[0]
