"""The text job that several experiments vary."""
import os

JOB = """name: {name}
seed: 13
data: {{path: "{data}/train-*.jsonl.zst", holdout_path: "{data}/valid.jsonl.zst", shard_samples: 2048}}
model: {{type: llama, dim: {dim}, depth: {depth}, heads: {heads}, kv_heads: {kv}, context: 256, tied: true{warm}}}
train: {{batch: {batch}, lr: {lr}, warmup: 30, schedule: cosine, final_lr: 0.1, weight_decay: 0.1, beta2: 0.95}}
recipe: {{{recipe}}}
partition: {{method: {method}, dims: 32, chunk: {chunk}}}
outer: {{rounds: {rounds}, {phase}, lr: {outer_lr}, momentum: {momentum}, ema: 0{outer}}}
wire: {{up: {wire}, down: {wire}}}
sample: {{tokens: 100, prompt: "PEP 8"}}
eval: {{every: {every}, samples: 2000}}
"""


def text_job(name, data, **over):
    values = dict(name=name, data=os.path.abspath(data), dim=128, heads=4, kv=2, depth=6, warm="", method="auto", chunk=0, batch=8, lr="2e-3", rounds=12, steps=0, seconds=0,
                  outer_lr=0.7, momentum=0.8, outer="", wire="int8", recipe="name: diloco")
    values.update(over)
    values["phase"] = f"steps: {values['steps']}" if values["steps"] else f"seconds: {values['seconds']}"
    values.setdefault("every", max(1, values["rounds"] // 4))
    return JOB.format(**values)
