"""Frozen networks in f32 on two threads of the CPU against PyTorch: samples per second, of the fastest of several runs
of each, taken in turns.

    python speed_frozen.py [NAME ...]      a line of JSON for each: what is measured, and the ratio (ours to theirs)
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve() / "release/tests/tools/worker/frozen_probe"
ROUNDS = 3


def vae(channels, layers, groups):
    n = len(channels)
    return AutoencoderKL(block_out_channels=channels, layers_per_block=layers, norm_num_groups=groups,
                         down_block_types=["DownEncoderBlock2D"] * n, up_block_types=["UpDecoderBlock2D"] * n)


def clip():
    return CLIPTextModel(CLIPTextConfig(vocab_size=49408, hidden_size=768, intermediate_size=3072,
                                        num_hidden_layers=12, num_attention_heads=12, bos_token_id=0, eos_token_id=1))


def t5():
    return T5EncoderModel(T5Config(d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12,
                                   feed_forward_proj="gated-gelu"))


# name: the network, part, side or tokens, samples at a time in PyTorch and here, samples.  The first is that of Stable
# Diffusion, the text encoders are CLIP ViT-L's and T5 v1.1 base's.
CASES = {
    "vae_encode": (lambda: vae([128, 256, 512, 512], 2, 32), "encode", 128, 1, 1),
    "vae_encode_small": (lambda: vae([32, 64, 128], 1, 8), "encode", 64, 4, 16),
    "vae_decode": (lambda: vae([128, 256, 512, 512], 2, 32), "decode", 64, 1, 1),
    "clip": (clip, "text", 77, 8, 8),
    "t5": (t5, "text", 120, 8, 8),
}


def theirs(model, part, inputs, group):
    """Seconds of one pass over all samples."""
    start = time.perf_counter()
    with torch.inference_mode():
        for i in range(0, len(inputs["in"]), group):
            x = inputs["in"][i:i + group]
            if part == "encode":
                model.encode(x.permute(0, 3, 1, 2) / 127.5 - 1)
            elif part == "decode":
                model.decode(x / model.config.scaling_factor)
            elif "lengths" in inputs and isinstance(model, T5EncoderModel):
                mask = torch.arange(x.shape[1])[None] < inputs["lengths"][i:i + group, None]
                model(x.long(), attention_mask=mask.long())
            else:
                model(x.long())
    return time.perf_counter() - start


def draw(model, part, size, n):
    if part == "encode":
        return {"in": torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8)}
    if part == "decode":
        return {"in": torch.randn(n, model.config.latent_channels, *[size >> (len(model.config.block_out_channels) - 1)] * 2)}
    return {"in": torch.randint(0, 1000, (n, size), dtype=torch.int32),
            "lengths": torch.full((n,), size, dtype=torch.int32)}


def measure(name):
    make, part, size, group, n = CASES[name]
    model = make().eval()
    inputs = draw(model, part, size, n)
    best = {"ours": 0.0, "theirs": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model.save_pretrained(folder / "model")
        save_file(inputs, folder / "in.safetensors")
        for _ in range(ROUNDS):
            said = subprocess.run([PROBE, part, "cpu", "f32", folder / "model", str(size), "-1", str(group),
                                   folder / "in.safetensors", folder / "out.safetensors", "3"],
                                  check=True, capture_output=True, text=True).stdout
            best["ours"] = max(best["ours"], float(said))
            best["theirs"] = max(best["theirs"], *(n / theirs(model, part, inputs, group) for _ in range(3)))
    return best


def main():
    torch.set_num_threads(2)
    for name in sys.argv[1:] or CASES:
        best = measure(name)
        ratio = best["ours"] / best["theirs"]
        print(json.dumps({"name": f"encode_vs_torch_{name}", "value": round(ratio, 3), "unit": "x", "bound": 1.0,
                          "holds": ratio >= 1, "samples_s": best, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
