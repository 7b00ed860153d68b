"""The text job that several experiments vary, on a part of the documents: three of the eight
training files, more than any run needs, and each fourth held-out document, so that every
model is judged by the same two thousand pieces, within seconds."""
import os
import subprocess
import sys

JOB = """name: {name}
seed: 13
data: {{path: "{data}/train-0000[0-2].jsonl.zst", holdout_path: "{held}", shard_samples: 2048}}
model: {{type: llama, dim: {dim}, depth: {depth}, heads: {heads}, kv_heads: {kv}, context: 256, tied: true{warm}}}
train: {{batch: {batch}, lr: {lr}, warmup: 30, schedule: cosine, final_lr: 0.1, weight_decay: 0.1, beta2: 0.95}}
recipe: {{{recipe}}}
partition: {{method: {method}, dims: 32, chunk: {chunk}{part}}}
outer: {{rounds: {rounds}, {phase}, lr: {outer_lr}, momentum: {momentum}, ema: 0{outer}}}
wire: {{up: {wire}, down: {wire}}}
sample: {{tokens: 100, prompt: "PEP 8"}}
eval: {{every: {every}, samples: 4000}}
"""


def held_out(here, data):
    """Writes each fourth document of valid.jsonl.zst into a file."""
    path = os.path.abspath(os.path.join(here.out, "held-out.jsonl"))
    if not os.path.exists(path):
        try:
            done = subprocess.run(["zstd", "-dcq", os.path.join(data, "valid.jsonl.zst")], stdout=subprocess.PIPE, check=True)
        except (OSError, subprocess.CalledProcessError) as e:
            sys.exit(f"{here.name}: {data}/valid.jsonl.zst cannot be read: {e}; is the package zstd installed?")
        with open(path + ".part", "wb") as f:
            f.writelines(done.stdout.splitlines(keepends=True)[::4])
        os.replace(path + ".part", path)
    return path


def text_job(here, name, data, **over):
    values = dict(name=name, data=os.path.abspath(data), held=held_out(here, data), dim=128, heads=4, kv=2, depth=6, warm="", method="auto", chunk=0, part="", batch=8, lr="2e-3", rounds=12, steps=0, seconds=0,
                  outer_lr=0.7, momentum=0.8, outer="", wire="int8", recipe="name: diloco")
    values.update(over)
    values["phase"] = f"steps: {values['steps']}" if values["steps"] else f"seconds: {values['seconds']}"
    values.setdefault("every", max(1, values["rounds"] // 4))
    return JOB.format(**values)


def dense(here, name, data, steps, **over):
    """A run of plain AdamW: one replica, and an outer step that only copies."""
    job = text_job(here, name, data, recipe="name: diloco", **{**dict(rounds=4, steps=steps // 4, every=1, outer_lr=1.0, momentum=0, wire="f32"), **over})
    return here.run(name, job, 1)


def warm_start(report):
    """Arguments of text_job() for a job that begins with the weights of this run."""
    return f", warm_start: \"{os.path.join(os.path.abspath(report.folder), 'model')}\""
