"""The common parts of the integration tests: the programs, tiny jobs, waiting for conditions."""
import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import dataset  # noqa: E402

BIN = os.path.abspath(os.environ.get("SKERRY_BIN", "build/bin"))
HANGS = 240  # seconds after which what a test waits for hangs: no machine is so slow, whatever else it does
PATIENCE = 4  # what takes long where nothing else runs has so many times as long
WAITS = []  # (seconds waited, the limit, what for) of a test, which conftest.py reports
PORTS, PORTS_EACH = range(12000, 28000), 100  # below those that the kernel gives to whoever asks for any
NEXT_PORT = itertools.count()

JOB = """name: tiny
seed: 5
data: {{path: data, image_size: 16, holdout: {holdout}, shard_samples: 32}}
model: {{patch: 4, dim: {dim}, depth: {depth}, heads: {heads}}}
train: {{batch: {batch}, lr: 1e-3, precision: {precision}}}
recipe: {{name: diloco, replicas: {replicas}}}
outer: {{rounds: {rounds}, steps: {steps}, lr: {lr}, momentum: {momentum}, ema: {ema}}}
wire: {{up: {up}, down: {down}}}
sample: {{every: {sample_every}, count: 4, steps: 3, columns: 2}}
eval: {{every: {eval_every}, samples: 8}}
"""


def make_dataset(folder, classes=2, images=96, size=16, fmt="png"):
    return dataset.make(str(folder), classes=classes, images=images, size=size, fmt=fmt)


def write_job(folder, data=True, **keys):
    """folder/job.yaml with folder/data beside it; returns the job's path."""
    values = dict(dim=32, depth=2, batch=8, precision="f32", replicas=2, rounds=2, steps=4, lr=0.7, momentum=0.9, ema=0.5,
                  up="e3m0", down="e3m0", holdout=0.1, sample_every=0, eval_every=0, images=96)
    values.update(keys)
    values.setdefault("heads", max(2, values["dim"] // 128))  # none is wider than 128
    if data:
        make_dataset(os.path.join(str(folder), "data"), images=values["images"])
    path = os.path.join(str(folder), "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(JOB.format(**values))
    return path


def skerry(*args, timeout=180 * PATIENCE, env=None, **kw):
    return subprocess.run([f"{BIN}/skerry", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=timeout, env={**os.environ, **(env or {})}, **kw)


def wait_until(done, seconds, what):
    """The first true value of done(), for which a machine with nothing else to do needs less than so many seconds; fails when it hangs, and
    names `what`."""
    limit, began = max(HANGS, PATIENCE * seconds), time.monotonic()
    while True:
        got, waited = done(), time.monotonic() - began
        if got:
            WAITS.append((waited, limit, str(what)))
            return got
        assert waited < limit, f"waited {limit} s for {what}"
        time.sleep(min(0.1, max(0.02, waited / 20)))  # who asks all the time keeps those busy who are to get there


def free_ports(n, host="127.0.0.1"):
    """Ports to listen on later, or again.  They are from a block of this process's own, because the kernel soon gives others its free ports again."""
    first, found = PORTS[os.getpid() % (len(PORTS) // PORTS_EACH) * PORTS_EACH], []
    while len(found) < n:
        with contextlib.suppress(OSError), socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a listener has it: what was here before may linger
            s.bind((host, first + next(NEXT_PORT) % PORTS_EACH))
            found.append(s.getsockname()[1])
    return found


def children_of(pid):
    """The children of all threads of a process."""
    return [int(p) for thread in os.listdir(f"/proc/{pid}/task")
            for p in open(f"/proc/{pid}/task/{thread}/children").read().split()]


def read_safetensors(path):
    """The tensors of a file: a u64 length, a JSON header, raw little-endian values."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    kinds = {"F32": np.float32, "I32": np.int32, "U8": np.uint8, "I8": np.int8, "F64": np.float64, "I64": np.int64, "F16": np.float16,
             "BF16": np.uint16}
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + a:8 + n + b], kinds[t["dtype"]]).reshape(t["shape"])
    return out
