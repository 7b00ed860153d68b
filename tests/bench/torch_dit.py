#!/usr/bin/env python3
"""The same DiT training step in PyTorch, as fast as we know how to make it.

    torch_dit.py --dtype bf16 --mode compile         # one variant, answers on stdin/stdout
    torch_dit.py --dtype bf16 --mode best --seconds 20   # stand-alone: prints images/s

Protocol, so that a driver can alternate this with another program in one run:
prints `ready NAME VERSION` after warming up; then each line `go N` runs N steps and
answers `SECONDS`; `quit` or end of input ends it.  --mode best warms up eager and
torch.compile, times both and keeps the faster.  With --caption-tokens the model is diffusers'
PixArtTransformer2DModel on latents of 4 channels, whose captions' states are there.
"""
import argparse
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.proj(o.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads, ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        hidden = int(dim * ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"),
                                 nn.Linear(hidden, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c):
        s1, c1, g1, s2, c2, g2 = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + g1.unsqueeze(1) * self.attn(modulate(self.norm1(x), s1, c1))
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, c2))


class DiT(nn.Module):
    def __init__(self, size, patch, dim, depth, heads, classes, ratio=4.0, channels=3):
        super().__init__()
        self.patch, self.channels, self.grid = patch, channels, size // patch
        self.x_embedder = nn.Conv2d(channels, dim, patch, stride=patch)
        self.t_embedder = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.y_embedder = nn.Embedding(classes + 1, dim)
        self.register_buffer("pos_embed", torch.randn(1, self.grid ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, heads, ratio) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(dim, patch * patch * channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        half = 128
        self.register_buffer("freqs", torch.exp(-math.log(10000) * torch.arange(half) / half))

    def forward(self, x, t, y):
        b, p, g = x.shape[0], self.patch, self.grid
        h = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        args = t[:, None] * 1000.0 * self.freqs[None]
        c = self.t_embedder(torch.cat([args.cos(), args.sin()], 1)) + self.y_embedder(y)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        h = self.linear(modulate(self.norm(h), shift, scale))
        h = h.reshape(b, g, g, p, p, self.channels)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(b, self.channels, g * p, g * p)


class Captioned(nn.Module):
    """diffusers' PixArt, with the arguments of DiT."""

    def __init__(self, args):
        super().__init__()
        from diffusers import PixArtTransformer2DModel
        self.net = PixArtTransformer2DModel(
            num_attention_heads=args.heads, attention_head_dim=args.dim // args.heads, in_channels=4,
            out_channels=4, num_layers=args.depth, cross_attention_dim=args.dim, sample_size=args.grid * args.patch,
            patch_size=args.patch, use_additional_conditions=False, caption_channels=args.caption)

    def forward(self, x, t, y):
        states, mask = y
        return self.net(x, encoder_hidden_states=states, timestep=1000 * t, encoder_attention_mask=mask,
                        return_dict=False)[0]


class Run:
    """One way of running the step; the loss is the rectified-flow objective."""

    def __init__(self, args, compiled):
        torch.manual_seed(0)
        self.name = "compile" if compiled else "eager"
        self.bf16 = args.dtype == "bf16"
        size = args.grid * args.patch
        captions, self.channels = args.caption_tokens, 4 if args.caption_tokens else 3
        self.model = (Captioned(args) if captions else
                      DiT(size, args.patch, args.dim, args.depth, args.heads, args.classes))
        for p in self.model.parameters():  # zero-initialised gates would skip no work, but be fair
            nn.init.normal_(p, std=0.02)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
        self.x = torch.randn(args.batch, self.channels, size, size)
        self.y = torch.randint(0, args.classes, (args.batch,))
        if captions:
            self.y = (torch.randn(args.batch, captions, args.caption),
                      torch.ones(args.batch, captions, dtype=torch.bool))
        self.net = torch.compile(self.model) if compiled else self.model

    def step(self):
        x0, b = self.x, self.x.shape[0]
        eps, t = torch.randn_like(x0), torch.sigmoid(torch.randn(b))
        tt = t.view(b, 1, 1, 1)
        xt = (1 - tt) * x0 + tt * eps
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            v = self.net(xt, t, self.y)
        loss = F.mse_loss(v.float(), eps - x0)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss

    def run(self, n):
        start = time.perf_counter()
        for _ in range(n):
            self.step()
        return time.perf_counter() - start


def variants(args):
    """The variants that were asked for, warmed up; torch.compile is left out with a message if it fails."""
    out = []
    if args.mode in ("eager", "best"):
        out.append(Run(args, False))
    if args.mode in ("compile", "best"):
        run = Run(args, True)
        try:
            run.run(1)
            out.append(run)
        except Exception as e:  # no compiler, no headers: eager alone still is a comparison
            print(f"torch.compile failed: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    if not out:
        sys.exit("no variant of the PyTorch step works here")
    for run in out:
        run.run(2)
    return out


def choose(runs):
    if len(runs) == 1:
        return runs[0]
    best = {r.name: math.inf for r in runs}
    for _ in range(2):  # alternating, so that a busy machine hurts both
        for r in runs:
            best[r.name] = min(best[r.name], r.run(1))
    print("seconds a step: " + ", ".join(f"{k} {v:.3f}" for k, v in best.items()), file=sys.stderr)
    return min(runs, key=lambda r: best[r.name])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    ap.add_argument("--mode", choices=["eager", "compile", "best"], default="best")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--dim", type=int, default=384)
    ap.add_argument("--depth", type=int, default=12)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--grid", type=int, default=8, help="tokens per side")
    ap.add_argument("--patch", type=int, default=2)
    ap.add_argument("--classes", type=int, default=10)
    ap.add_argument("--caption", type=int, default=768, help="channels of a caption's states")
    ap.add_argument("--caption-tokens", type=int, default=0)
    ap.add_argument("--seconds", type=float, default=0, help="measure this long and exit")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    run = choose(variants(args))
    if args.seconds > 0:
        n, spent = 0, 0.0
        while spent < args.seconds:
            spent += run.run(1)
            n += 1
        print(f"torch {torch.__version__} {args.dtype} {run.name}: "
              f"{n * args.batch / spent:.2f} images/s, {spent / n:.4f} s a step")
        return
    print(f"ready {run.name} {torch.__version__}", flush=True)
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        print(f"{run.run(int(words[1])):.6f}", flush=True)


if __name__ == "__main__":
    main()
