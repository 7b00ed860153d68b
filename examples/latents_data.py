"""Frozen networks for a captioned job, made from what a Debian machine has.

    latents_data.py PICTURES OUT [--side 32] [--steps 900]

PICTURES has .png, .jpg or .webp files, in it or in class folders, with their captions in a .txt
beside each.  OUT becomes the folder of a pipeline: a small AutoencoderKL trained here on the pictures
(shrinks by 4 to 4 channels), a CLIP text encoder with random weights, whose states are fixed random
features of the words, and a CLIP tokenizer that knows the captions' words.  Needs Debian's python3-torch,
python3-numpy and python3-pil."""
import argparse
import glob
import json
import os
import re
import sys
import time

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin starve each other where others work, too
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "tools"))
import frozen_models  # noqa: E402  (folders as diffusers and transformers save them)

IMAGES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp")  # as docs/data.md has them
CHANNELS, LATENT, GROUPS, BATCH = (16, 32, 64), 4, 8, 16


def norm(n):
    return nn.GroupNorm(GROUPS, n, eps=1e-6)


class Resnet(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = norm(a), nn.Conv2d(a, b, 3, padding=1)
        self.norm2, self.conv2 = norm(b), nn.Conv2d(b, b, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Resize(nn.Module):
    """Halves or doubles the size."""

    def __init__(self, n, up):
        super().__init__()
        self.up, self.conv = up, nn.Conv2d(n, n, 3, stride=1 if up else 2, padding=1 if up else 0)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2) if self.up else F.pad(x, (0, 1, 0, 1)))


class Block(nn.Module):
    def __init__(self, a, b, resnets, resize=None):
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(a if i == 0 else b, b) for i in range(resnets))
        if resize:
            setattr(self, resize, nn.ModuleList([Resize(b, resize == "upsamplers")]))
        self.resize = resize

    def forward(self, x):
        for r in self.resnets:
            x = r(x)
        return getattr(self, self.resize)[0](x) if self.resize else x


class Half(nn.Module):
    """The encoder or the decoder of an AutoencoderKL without attention, with diffusers' names."""

    def __init__(self, inputs, outputs, channels, resnets, blocks, resize):
        super().__init__()
        last = len(channels) - 1
        up = resize == "upsamplers"
        ends = (channels[0], channels[-1])
        self.conv_in = nn.Conv2d(inputs, ends[0], 3, padding=1)
        self.middle_first = up
        self.mid_block = Block(ends[0] if up else ends[1], ends[0] if up else ends[1], 2)
        setattr(self, blocks, nn.ModuleList(
            Block(channels[max(i - 1, 0)], b, resnets, resize if i < last else None) for i, b in enumerate(channels)))
        self.blocks = blocks
        self.conv_norm_out = norm(ends[1])
        self.conv_out = nn.Conv2d(ends[1], outputs, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        if self.middle_first:
            x = self.mid_block(x)
        for block in getattr(self, self.blocks):
            x = block(x)
        if not self.middle_first:
            x = self.mid_block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class AutoencoderKL(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Half(3, 2 * LATENT, CHANNELS, 1, "down_blocks", "downsamplers")
        self.decoder = Half(LATENT, 3, CHANNELS[::-1], 2, "up_blocks", "upsamplers")

    def encode(self, x):
        mean, logvar = self.encoder(x).chunk(2, 1)
        return mean, logvar.clamp(-30, 20)

    def loss(self, x):
        mean, logvar = self.encode(x)
        y = self.decoder(mean + torch.exp(0.5 * logvar) * torch.randn_like(mean))
        off = x - y
        return off.abs().mean() + 4 * off.square().mean() + 1e-4 * (mean**2 + logvar.exp() - logvar - 1).mean()


def caption_of(path):
    """The first caption of a .txt; that of a picture without one is empty, as in a job."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8-sig", errors="replace") as f:
        return f.readline().strip()


def read(folder, side):
    """All pictures (n, 3, side, side) in [-1, 1], and the captions."""
    pictures, captions = [], []
    found = glob.glob(os.path.join(glob.escape(folder), "*.*")) + glob.glob(os.path.join(glob.escape(folder), "*", "*.*"))
    for path in sorted(p for p in found if p.lower().endswith(IMAGES)):
        try:
            with Image.open(path) as im:
                pictures.append(np.asarray(im.convert("RGB").resize((side, side), Image.LANCZOS)))
        except (OSError, Image.DecompressionBombError) as e:
            print(f"latents: {path} is left out, as it cannot be read: {e}", flush=True)
            continue
        captions.append(caption_of(os.path.splitext(path)[0] + ".txt"))
    if not pictures:
        sys.exit(f"latents: no NAME.png, .jpg or .webp in {folder} or in folders in it; `make demo-data` draws some")
    if not any(captions):
        sys.exit(f"latents: no picture in {folder} has a caption, in a NAME.txt beside NAME.png")
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1, captions


def train(pictures, steps, lr=2e-3):
    torch.manual_seed(1)
    net, begun = AutoencoderKL(), time.monotonic()
    opt = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0)
    for step in range(steps):
        for g in opt.param_groups:
            g["lr"] = lr * min(1, (step + 1) / 50) * (1 - step / steps)
        x = pictures[torch.randint(0, len(pictures), (BATCH,))]
        loss = net.loss(x[:, torch.randperm(3)] if step % 2 else x)  # half with swapped channels, else rare colours are learned late
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if (step + 1) % 100 == 0:
            print(f"autoencoder: step {step + 1} of {steps}, loss {loss.item():.4f}, "
                  f"{time.monotonic() - begun:.0f} s", flush=True)
    return net.eval()


def save(net, pictures, folder):
    """As diffusers has it, with the shift and the scale that make latents of mean 0 and variance 1."""
    with torch.no_grad():
        z = torch.cat([net.encode(p)[0] for p in pictures[::7].split(64)])
    frozen_models.save(folder, {
        "_class_name": "AutoencoderKL", "act_fn": "silu", "in_channels": 3, "out_channels": 3,
        "block_out_channels": list(CHANNELS), "latent_channels": LATENT, "layers_per_block": 1,
        "down_block_types": ["DownEncoderBlock2D"] * len(CHANNELS),
        "up_block_types": ["UpDecoderBlock2D"] * len(CHANNELS), "norm_num_groups": GROUPS,
        "mid_block_add_attention": False, "use_quant_conv": False, "use_post_quant_conv": False,
        "force_upcast": False, "sample_size": pictures.shape[-1], "shift_factor": z.mean().item(),
        "scaling_factor": 1 / z.std().item()}, {k: v.contiguous().numpy() for k, v in net.state_dict().items()},
        "diffusion_pytorch_model.safetensors")


def make(pictures_folder, out, side, steps):
    """The folder of a pipeline, from pictures and their captions."""
    torch.set_num_threads(os.cpu_count())
    pictures, captions = read(pictures_folder, side)
    print(f"latents: {len(pictures)} pictures of {side} x {side}", flush=True)
    save(train(pictures, steps), pictures, os.path.join(out, "vae"))
    words = sorted({w for c in captions for w in re.findall(r"[a-z]+", c.lower())})
    tokens = frozen_models.clip_tokenizer(os.path.join(out, "tokenizer"), words)
    frozen_models.clip(os.path.join(out, "text_encoder"), tokens, dim=128, heads=4, bos_token_id=tokens - 2,
                       eos_token_id=tokens - 1, pad_token_id=tokens - 1)
    frozen_models.index(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pictures")
    p.add_argument("out")
    p.add_argument("--side", type=int, default=32)
    p.add_argument("--steps", type=int, default=900)
    args = p.parse_args()
    make(args.pictures, args.out, args.side, args.steps)


if __name__ == "__main__":
    main()
