"""Six tiny jobs that together use every recipe and every way of folding, on images and on text.

With several workers the order of their arrival would decide which shards each gets, so there is one worker; there is also
only one replica where several would race against the executor (fragments, async)."""
import json
import os
import random
import struct
import zlib

IMAGES = """data: {path: images, image_size: 16, holdout: 0.2, shard_samples: 32, flip: true}
model: {patch: 4, dim: 32, depth: 2, heads: 2}
"""
TEXT = """data: {path: train.jsonl, holdout_path: valid.jsonl, shard_samples: 64}
model: {type: llama, dim: 32, depth: 2, heads: 2, kv_heads: 1, context: 64}
"""
EXPERTS = IMAGES + """name: experts
router: {dim: 16, depth: 1, heads: 1}
train: {batch: 12, lr: 1e-3, precision: f32}
recipe: {name: ddm, experts: 3, early_stop: true}
partition: {dims: 8, fine: 16}
outer: {rounds: 3, steps: 4, ema: 0.5}
wire: {up: bf16, down: bf16}
sample: {count: 4, steps: 3, columns: 2, strategy: topk, top: 2}
eval: {every: 1, samples: 32}
"""
DILOCO = IMAGES + """name: diloco
train: {batch: 8, lr: 1e-3, warmup: 4, schedule: cosine, precision: bf16}
recipe: {name: diloco, replicas: 2}
outer: {rounds: %d, steps: %d, warmup: 2, ema: 0.5}
wire: {up: e3m0, down: e3m0}
sample: {every: 2, count: 4, steps: 3, columns: 2}
eval: {every: 1, samples: 16}
"""
LONG = DILOCO % (5, 150)  # to be stopped in the middle
JOBS = {
    "diloco": [DILOCO % (4, 6)],
    "ddm": [EXPERTS],
    "dipaco": [TEXT + """name: dipaco
train: {batch: 4, lr: 2e-3, precision: f32}
recipe: {name: dipaco, levels: [2, 2], reshard: [2], private_embeddings: true}
partition: {dims: 8}
outer: {rounds: 3, steps: 4, warmup: 0}
wire: {up: int8, down: int8}
sample: {prompt: "a = ", tokens: 12}
eval: {every: 1, samples: 40}
"""],
    "distill": [EXPERTS, IMAGES + """name: student
train: {batch: 12, lr: 1e-3, weight_decay: 0.1, precision: f32}
recipe: {name: distill, teacher: 1}
outer: {rounds: 2, steps: 6, ema: 0.5}
wire: {up: f32, down: f32}
sample: {count: 4, steps: 3, columns: 2, sampler: heun}
eval: {every: 1, samples: 32}
"""],
    "fragments": [TEXT + """name: fragments
train: {batch: 4, lr: 2e-3, precision: bf16}
recipe: {name: diloco}
outer: {rounds: 4, steps: 10, fragments: 2, delay: 2, mix: 0.5}
wire: {up: e3m0, down: int8}
sample: {prompt: "a = ", tokens: 12}
eval: {every: 1, samples: 40}
"""],
    "async": [IMAGES + """name: async
train: {batch: 8, accumulate: 2, lr: 1e-3, t: uniform, recompute: true, precision: f32}
recipe: {name: diloco}
outer: {rounds: 6, steps: 5, async: true, nesterov_delay: 2, ema: 0.5}
wire: {up: int8, down: e3m0}
sample: {count: 4, steps: 3, columns: 2}
eval: {every: 2, samples: 16}
"""],
}
WORDS = [words.split() for words in ("int return if while for x y = + ; ( ) { }", "Der Die Das Gesetz Absatz und oder nicht",
                                     "moon river night song wind silver over", "1 2 3 4 5 6 7 8 9 0 + - = * /")]


def png(size, pixel):
    """An RGB picture as a PNG; pixel(x, y) -> three bytes."""
    rows = b"".join(b"\0" + bytes(v for x in range(size) for v in pixel(x, y)) for y in range(size))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_images(folder, classes=3, count=120, size=16):
    rng = random.Random(7)
    for i in range(count):
        where = os.path.join(folder, f"class{i % classes}")
        os.makedirs(where, exist_ok=True)
        ink, paper = ([rng.randrange(256) for _ in range(3)] for _ in range(2))
        cx, cy, r = rng.uniform(5, 11), rng.uniform(5, 11), rng.uniform(3, 6)
        inside = [lambda x, y: (x - cx) ** 2 + (y - cy) ** 2 < r * r, lambda x, y: max(abs(x - cx), abs(y - cy)) < r,
                  lambda x, y: abs(x - cx) + abs(y - cy) < r][i % classes]
        with open(os.path.join(where, f"{i:04d}.png"), "wb") as f:
            f.write(png(size, lambda x, y: ink if inside(x, y) else paper))


def write_texts(folder):
    rng = random.Random(3)
    for name, count in (("train", 160), ("valid", 40)):
        with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as f:
            for i in range(count):
                f.write(json.dumps({"text": " ".join(rng.choice(WORDS[i % len(WORDS)]) for _ in range(60))}) + "\n")


def write(folder, texts, seed):
    """folder/job-I.yaml for each text, with the data beside them; the paths."""
    os.makedirs(folder)
    write_images(os.path.join(folder, "images"))
    write_texts(folder)
    paths = []
    for i, text in enumerate(texts):
        paths.append(os.path.join(folder, f"job-{i}.yaml"))
        with open(paths[-1], "w", encoding="utf-8") as f:
            f.write(f"seed: {seed + i}\n{text}")
    return paths
