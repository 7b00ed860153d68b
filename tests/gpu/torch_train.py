#!/usr/bin/env python3
"""The same training step in PyTorch over several batch sizes: the other side of train_bench.

    torch_train.py --dim 1152 --depth 28 --heads 16 --grid 16 --batch 64 --batch 128

torch.compile, fused attention, autocast to bf16 over f32 weights, fused AdamW; images come from pinned
memory as bytes, as ours do.  `--sweep` compiles that way for each batch size, `--refine` only for the
best: "block" compiles the block that all blocks share (seconds), "model" the whole model (minutes for a
deep one), "graphs" the same replayed as CUDA graphs, "eager" nothing.  Figures are lines of JSON, each
written as soon as it is known; after --limit seconds nothing new is begun.
"""
import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from torch_dit import DiT  # noqa: E402

WARM, GROUPS = 4, 3


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def host_seconds():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def peak(device):
    """FLOP/s of large bf16 products: the median of ten, as train_bench measures its own."""
    n = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    times = []
    for _ in range(10):
        synchronize(device)
        start = time.perf_counter()
        a @ b
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * n ** 3 / statistics.median(times)


class Step:
    def __init__(self, args, device, batch, mode):
        torch.manual_seed(0)
        size = args.grid * args.patch
        self.device, self.batch, self.null = device, batch, args.classes
        self.model = DiT(size, args.patch, args.dim, args.depth, args.heads, args.classes).to(device)
        for p in self.model.parameters():
            nn.init.normal_(p, std=0.02)
        self.net = self.model
        if mode == "block":
            for block in self.model.blocks:
                block.compile(dynamic=False)
        elif mode in ("model", "graphs"):
            self.net = torch.compile(self.model, dynamic=False, mode="reduce-overhead" if mode == "graphs" else None)
        self.images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
        self.labels = torch.randint(0, args.classes, (batch,))
        if device.type == "cuda":
            self.images, self.labels = self.images.pin_memory(), self.labels.pin_memory()
        fused = {"fused": True} if device.type == "cuda" else {}
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0, **fused)

    def __call__(self):
        b = self.batch
        x0 = self.images.to(self.device, non_blocking=True).float() / 127.5 - 1
        labels = self.labels.to(self.device, non_blocking=True)
        labels = torch.where(torch.rand(b, device=self.device) < 0.1, self.null, labels)
        eps, t = torch.randn_like(x0), torch.sigmoid(torch.randn(b, device=self.device))
        s = t.view(b, 1, 1, 1)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            v = self.net((1 - s) * x0 + s * eps, t, labels)
        loss = nn.functional.mse_loss(v.float(), eps - x0)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return loss

    def run(self, n):
        """Seconds of a step, and the host's share of one core."""
        synchronize(self.device)
        start, host = time.perf_counter(), host_seconds()
        for _ in range(n):
            loss = self()
        self.loss = loss.item()
        spent = time.perf_counter() - start
        return spent / n, (host_seconds() - host) / spent


def measure(args, device, batch, mode):
    gc.collect()  # a compiled block refers to itself: the model before this one may still be there
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    begun = time.perf_counter()
    step = Step(args, device, batch, mode)
    step.run(1)
    first = time.perf_counter() - begun
    step.run(WARM - 1)
    n = max(2, int(args.seconds / GROUPS / max(step.run(1)[0], 1e-6)))
    seconds, host = min(step.run(n) for _ in range(GROUPS))
    row = {"batch": batch, "mode": mode, "images_per_s": batch / seconds, "host_share": host, "loss": step.loss,
           "seconds": first, "bytes": None, "reserved": None}
    if device.type == "cuda":
        row.update(bytes=torch.cuda.max_memory_allocated() - before, reserved=torch.cuda.max_memory_reserved())
    return row


class Bench:
    def __init__(self, args, device):
        self.args, self.device, self.rows = args, device, []
        self.begun = time.monotonic()

    def write(self, row):
        print(json.dumps(row), flush=True)

    def one(self, batch, mode):
        if time.monotonic() - self.begun > self.args.limit:
            self.write({"batch": batch, "mode": mode, "error": "no time left"})
            return
        try:
            row = measure(self.args, self.device, batch, mode)
            self.rows.append(row)
            print(f"  {mode:6} batch {batch:<5} {row['images_per_s']:9.1f} images/s "
                  f"{(row['bytes'] or 0) / 2**30:8.2f} GiB, ready after {row['seconds']:.0f} s", flush=True)
        except Exception as e:  # out of memory, or a compiler that fails: the others still count
            row = {"batch": batch, "mode": mode, "error": f"{type(e).__name__}: {str(e)[:200]}"}
            print(f"  {mode:6} batch {batch:<5} {row['error']}", flush=True)
        self.write(row)

    def run(self):
        args = self.args
        can_compile = hasattr(torch, "compile")
        for batch in args.batch:
            self.one(batch, args.sweep if can_compile else "eager")
        if self.rows and args.refine and can_compile:
            self.one(max(self.rows, key=lambda r: r["images_per_s"])["batch"], args.refine)


def arguments():
    modes = ["block", "model", "graphs", "eager"]
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--device", default="cuda:0")
    ap.add_argument("--dim", type=int, default=384)
    ap.add_argument("--depth", type=int, default=12)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--grid", type=int, default=8, help="tokens of a side")
    ap.add_argument("--patch", type=int, default=2)
    ap.add_argument("--classes", type=int, default=1000)
    ap.add_argument("--batch", type=int, action="append", required=True)
    ap.add_argument("--sweep", choices=modes, default="model")
    ap.add_argument("--refine", choices=modes)
    ap.add_argument("--seconds", type=float, default=3, help="for each batch size")
    ap.add_argument("--limit", type=float, default=120)
    return ap.parse_args()


def main():
    args = arguments()
    device = torch.device(args.device)
    torch.set_float32_matmul_precision("high")
    bench = Bench(args, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    bench.write({"torch": torch.__version__, "device": name, "peak": peak(device)})
    bench.run()
    return 0 if bench.rows else 1


if __name__ == "__main__":
    sys.exit(main())
