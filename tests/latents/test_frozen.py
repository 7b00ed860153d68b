"""Frozen networks against diffusers and transformers: random small configurations, drawn anew each run.

Each is saved by save_pretrained, run by the probe (tests/tools/worker/frozen_probe.c) in f32 and in bf16, and compared
with the reference in f32, relative to its largest value.
"""
import os
import pathlib
import random
import subprocess

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve() / "release/tests/tools/worker/frozen_probe"
DEVICE = os.environ.get("SKERRY_DEVICE", "cpu")
CASES = int(os.environ.get("SKERRY_FROZEN_CASES", "20"))
BOUND = {"f32": 2e-5, "bf16": 0.04}
torch.set_num_threads(2)


def shake(model, rng):
    """Adds noise, so that no bias is zero and no norm is one."""
    torch.manual_seed(rng.getrandbits(30))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def probe(part, dtype, folder, size, layer, group, inputs, out):
    path = folder / "in.safetensors"
    save_file(inputs, path)
    subprocess.run([PROBE, part, DEVICE, dtype, folder / "model", str(size), str(layer), str(group), path, out],
                   check=True)
    return load_file(out)["out"]


def compare(worst, name, folder, size, layer, inputs, want, what):
    n, part = len(want), name.removeprefix("vae_") if name.startswith("vae_") else "text"
    for dtype, bound in BOUND.items():
        got = probe(part, dtype, folder, size, layer, 1 + n // 2, inputs, folder / f"{dtype}.safetensors")
        error = ((got - want.reshape(n, -1)).abs().max() / want.abs().max()).item()
        worst(f"{name}_{dtype}", error, bound)
        assert error <= bound, f"{name} in {dtype} differs by {error:.2g}, allowed {bound}: {what}"
        if DEVICE.startswith("cpu"):
            alone = probe(part, dtype, folder, size, layer, 1, inputs, folder / "alone.safetensors")
            assert torch.equal(got, alone), f"{name} in {dtype} has other bits in another group: {what}"


def rename(folder, mapping):
    """Renames tensors to the older names of old folders."""
    path, = (folder / "model").glob("*.safetensors")
    save_file({mapping(k): v for k, v in load_file(path).items()}, path)


def save(model, folder, rng):
    """Saves in one file, in several, or as the variant fp16 (with values that are exact in f16)."""
    form = rng.choice(["one", "pieces", "variant"])
    if form == "variant":
        model.half().float()
        model.half().save_pretrained(folder / "model", variant="fp16")
        model.float()
    else:
        model.save_pretrained(folder / "model", **({"max_shard_size": "20KB"} if form == "pieces" else {}))
    return form


# ---- VAE ----

def draw_vae(rng, folder):
    blocks, groups = rng.randint(1, 3), rng.choice([1, 2, 4, 8])
    latent = rng.choice([4, 16])
    extra = rng.choice([{}, {"shift_factor": 0.1}, {"latents_mean": [rng.gauss(0, 1) for _ in range(latent)],
                                                    "latents_std": [0.5 + rng.random() for _ in range(latent)]}])
    config = dict(block_out_channels=[groups * rng.randint(2, 40 // groups) for _ in range(blocks)],
                  down_block_types=["DownEncoderBlock2D"] * blocks, up_block_types=["UpDecoderBlock2D"] * blocks,
                  layers_per_block=rng.randint(1, 2), norm_num_groups=groups, latent_channels=latent,
                  scaling_factor=0.1 + rng.random(), use_quant_conv=rng.random() < 0.5,
                  use_post_quant_conv=rng.random() < 0.5, mid_block_add_attention=rng.random() < 0.7, **extra)
    vae = shake(AutoencoderKL(**config), rng)
    form = save(vae, folder, rng)
    older = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    if form == "one" and rng.random() < 0.5:
        form = "older names"
        rename(folder, lambda k: next((k.replace(a, b) for a, b in older.items() if a in k), k))
    return vae, rng.randint(2, 8) * 2 ** (blocks - 1), f"{form} {config}"


@pytest.mark.parametrize("seed", [random.getrandbits(32) for _ in range(CASES)])
def test_vae(seed, tmp_path, worst):
    rng = random.Random(seed)
    vae, side, what = draw_vae(rng, tmp_path)
    pixels = torch.randint(0, 256, (3, side, side, 3), dtype=torch.uint8)
    with torch.no_grad():
        moments = vae.encode(pixels.permute(0, 3, 1, 2) / 127.5 - 1).latent_dist.parameters
        z = torch.randn(3, *moments.shape[1:])[:, :moments.shape[1] // 2]
        c = vae.config
        if c.latents_mean is not None:
            mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in (c.latents_mean, c.latents_std))
            seen = (z - mean) * c.scaling_factor / std
        else:
            seen = (z - (c.shift_factor or 0)) * c.scaling_factor
        picture = vae.decode(z).sample
    compare(worst, "vae_encode", tmp_path, side, -1, {"in": pixels}, moments, what)
    compare(worst, "vae_decode", tmp_path, side, -1, {"in": seen.contiguous()}, picture, what)


# ---- text ----

def draw_texts(rng, vocab, tokens):
    torch.manual_seed(rng.getrandbits(30))
    ids = torch.randint(0, vocab, (4, tokens), dtype=torch.int32)
    lengths = torch.tensor([1, tokens, rng.randint(1, tokens), rng.randint(1, tokens)], dtype=torch.int32)
    return ids, lengths, torch.arange(tokens)[None] < lengths[:, None]


@pytest.mark.parametrize("seed", [random.getrandbits(32) for _ in range(CASES)])
def test_clip(seed, tmp_path, worst):
    rng = random.Random(seed)
    heads, tokens = rng.randint(1, 4), rng.randint(2, 40)
    config = dict(vocab_size=rng.randint(4, 300), hidden_size=heads * rng.choice([16, 21, 32]),
                  intermediate_size=rng.randint(8, 150), num_hidden_layers=rng.randint(1, 4), num_attention_heads=heads,
                  max_position_embeddings=tokens + rng.randint(0, 5), hidden_act=rng.choice(["quick_gelu", "gelu"]),
                  bos_token_id=0, eos_token_id=1, pad_token_id=1)
    layer = rng.choice([-1, -2])
    model = shake(CLIPTextModel(CLIPTextConfig(**config)), rng)
    what = f"{save(model, tmp_path, rng)} layer {layer} {config}"
    if what.startswith("one") and rng.random() < 0.5:
        rename(tmp_path, lambda k: k if k.startswith("text_model.") else "text_model." + k)
    ids, lengths, mask = draw_texts(rng, config["vocab_size"], tokens)
    with torch.no_grad():
        said = model(ids.long(), output_hidden_states=True)
    want = said.last_hidden_state if layer == -1 else said.hidden_states[-2]
    compare(worst, "clip", tmp_path, tokens, layer, {"in": ids, "lengths": lengths}, want * mask[..., None], what)


@pytest.mark.parametrize("seed", [random.getrandbits(32) for _ in range(CASES)])
def test_t5(seed, tmp_path, worst):
    rng = random.Random(seed)
    tokens = rng.randint(2, 60)
    config = dict(vocab_size=rng.randint(4, 300), d_model=rng.randint(16, 70), d_kv=rng.choice([3, 8, 16, 64]),
                  d_ff=rng.randint(4, 150), num_layers=rng.randint(1, 4), num_heads=rng.randint(1, 5),
                  relative_attention_num_buckets=rng.choice([8, 9, 16, 32]),
                  relative_attention_max_distance=rng.choice([16, 40, 128]),
                  feed_forward_proj=rng.choice(["relu", "gated-gelu", "gated-silu"]))
    model = shake(T5EncoderModel(T5Config(**config)), rng)
    what = f"{save(model, tmp_path, rng)} {config}"
    ids, lengths, mask = draw_texts(rng, config["vocab_size"], tokens)
    with torch.no_grad():
        want = model(ids.long(), attention_mask=mask.long()).last_hidden_state
    compare(worst, "t5", tmp_path, tokens, -1, {"in": ids, "lengths": lengths}, want * mask[..., None], what)
