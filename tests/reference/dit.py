"""The model that Skerry trains, in PyTorch: a DiT (Peebles & Xie) with the tensor names of the
original code, predicting the velocity of a rectified flow.

    model = load("out/model")                          # what `skerry export` or `run` wrote
    images = sample(model, torch.tensor([0, 1, 2]), steps=30, guidance=1.5)   # (3,3,S,S) in [-1,1]

and the router of a mixture: load("out/model-router")(x, t) are the probabilities of its experts.
"""
import json
import math
import struct

import torch
from torch import nn

DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "U8": torch.uint8,
          "I8": torch.int8, "I32": torch.int32, "I64": torch.int64}
UPSCALER = "upscaler."  # begins the names of a cascade's second chain


def read_safetensors(path):
    """The tensors of a file by name, and its metadata; the `safetensors` package does the same."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    meta = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin)
        tensors[name] = flat.clone().view(DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors, meta


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


def positions(dim, side):
    """Position embeddings, (side*side, dim): sines and cosines of the column, then of the row."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    omega = 10000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = [p.reshape(-1, 1) * omega for p in (columns, rows)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], 1).float()


class Embedder(nn.Module):
    """Holds one layer, under its name in the original code."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


class Block(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.attn = Embedder(qkv=nn.Linear(dim, 3 * dim), proj=nn.Linear(dim, dim))
        self.mlp = Embedder(fc1=nn.Linear(dim, hidden), fc2=nn.Linear(hidden, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = self.attn.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)).softmax(-1)
        return self.attn.proj((weights @ v).transpose(1, 2).reshape(B, T, C))

    def forward(self, x, c):
        m = self.adaLN_modulation(c).chunk(6, 1)
        x = x + m[2][:, None] * self.attention(modulate(self.norm(x), m[0], m[1]))
        h = nn.functional.gelu(self.mlp.fc1(modulate(self.norm(x), m[3], m[4])), approximate="tanh")
        return x + m[5][:, None] * self.mlp.fc2(h)


class DiT(nn.Module):
    def __init__(self, image_size, patch_size, hidden_size, depth, num_heads, num_classes,
                 mlp_ratio=4.0, in_channels=3, self_condition=False, shift=1.0, **_):
        super().__init__()
        self.image, self.patch, self.channels, self.self_condition = image_size, patch_size, in_channels, self_condition
        self.null_label, self.shift, dim = num_classes, shift, hidden_size
        self.x_embedder = Embedder(proj=nn.Conv2d(in_channels * (2 if self_condition else 1), dim, patch_size, patch_size))
        self.t_embedder = Embedder(mlp=nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim)))
        self.y_embedder = Embedder(embedding_table=nn.Embedding(num_classes + 1, dim))
        self.blocks = nn.ModuleList(Block(dim, num_heads, int(dim * mlp_ratio)) for _ in range(depth))
        self.final_layer = Embedder(linear=nn.Linear(dim, patch_size ** 2 * in_channels),
                                    adaLN_modulation=nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim)))
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.register_buffer("positions", positions(dim, image_size // patch_size), persistent=False)

    def patches(self, x):
        return self.x_embedder.proj(x).flatten(2).transpose(1, 2) + self.positions

    def times(self, t):
        angles = 1000 * t[:, None] * torch.exp(-math.log(10000) * torch.arange(128, device=t.device) / 128)
        return self.t_embedder.mlp(torch.cat([angles.cos(), angles.sin()], 1))

    def last(self, h, c):
        return modulate(self.norm(h), *self.final_layer.adaLN_modulation(c).chunk(2, 1))

    def forward(self, x, t, labels, estimate=None):
        """Velocity at x (B,3,S,S), t (B) in [0,1], labels (B); null_label is the empty one.  With self_condition the
        model also reads an estimate of the image, as x; None stands for zeros."""
        if self.self_condition:
            x = torch.cat([x, torch.zeros_like(x) if estimate is None else estimate], 1)
        B, p, side = len(x), self.patch, self.image // self.patch
        h, c = self.patches(x), self.times(t) + self.y_embedder.embedding_table(labels)
        for block in self.blocks:
            h = block(h, c)
        h = self.final_layer.linear(self.last(h, c))
        h = h.view(B, side, side, p, p, self.channels)
        return torch.einsum("bhwpqc->bchpwq", h).reshape(B, self.channels, self.image, self.image)


class Router(DiT):
    """A DiT without labels, with a token before the patches whose last row is classified."""

    def __init__(self, hidden_size, num_classes, **config):
        super().__init__(hidden_size=hidden_size, num_classes=num_classes, **config)
        del self.y_embedder, self.final_layer.linear
        self.cls_token = nn.Parameter(torch.zeros(1, hidden_size))
        self.head = nn.Linear(hidden_size, num_classes)

    def forward(self, x, t):
        """Probabilities (B,K) of the experts at x (B,3,S,S), t (B)."""
        c = self.times(t)
        h = torch.cat([self.cls_token.expand(len(x), 1, -1), self.patches(x)], 1)
        for block in self.blocks:
            h = block(h, c)
        return self.head(self.last(h, c)[:, 0]).softmax(1)


def load(folder):
    config = json.load(open(f"{folder}/config.json"))
    model = (Router if config.get("model_type") == "DiT router" else DiT)(**config)
    tensors, _ = read_safetensors(f"{folder}/model.safetensors")
    tensors.pop("pos_embed", None)  # fixed; computed here
    model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith(UPSCALER)})
    return model.eval()


def load_upscaler(folder):
    """The second chain of a cascade, which reads its low-resolution image like an estimate."""
    config = json.load(open(f"{folder}/config.json"))
    model = DiT(num_classes=config["num_classes"], shift=config.get("shift", 1.0), **config["upscaler"])
    tensors, _ = read_safetensors(f"{folder}/model.safetensors")
    model.load_state_dict({k[len(UPSCALER):]: v for k, v in tensors.items() if k.startswith(UPSCALER)})
    model.noise = config["upscaler"]["noise"]
    return model.eval()


def enlarge(low, side):
    """Enlarges small images to (B,3,side,side), bilinearly, with values rounded to whole numbers 0..255."""
    return (nn.functional.interpolate(low.float(), (side, side), mode="bilinear") + 0.5).floor()


@torch.no_grad()
def sample(model, labels, steps=30, guidance=1.5, noise=None, told=None):
    """Euler steps from noise at t = 1 to images at t = 0, with classifier-free guidance.  With self_condition each of the
    two velocities reads the image that it estimated a step before; an upscaler reads the same image in each step.
    The job's train.shift makes the steps near noise shorter."""
    times = [model.shift * t / (1 + (model.shift - 1) * t) for t in (1 - i / steps for i in range(steps + 1))]
    x = noise if noise is not None else torch.randn(len(labels), model.channels, model.image, model.image)
    null = torch.full_like(labels, model.null_label)
    estimate = estimate0 = told
    for now, then in zip(times, times[1:]):
        t = torch.full((len(labels),), now)
        v, v0 = model(x, t, labels, estimate), model(x, t, null, estimate0)
        if told is None:
            estimate, estimate0 = x - now * v, x - now * v0
        x = x - (v0 + guidance * (v - v0)) * (now - then)
    return x
