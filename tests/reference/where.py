"""The devices of the comparisons.  By default each case names its own device for Skerry, and PyTorch computes on
the CPU.  tests/gpu/run.sh changes both:

    SKERRY_DEVICE=cuda:0 SKERRY_TORCH_DEVICE=cuda pytest tests/reference/test_dit.py tests/reference/test_llama.py
"""
import os

import torch

from dit import read_safetensors

DEVICE = os.environ.get("SKERRY_DEVICE")
TORCH = os.environ.get("SKERRY_TORCH_DEVICE", "cpu")

if TORCH != "cpu":
    torch.set_default_device(TORCH)
    torch.backends.cudnn.allow_tf32 = False  # the patch embedding is a convolution


def cases(named, larger):
    """The cases; if SKERRY_DEVICE is set, all on that device and with the larger ones."""
    if DEVICE is None:
        return named
    return list(dict.fromkeys((DEVICE, *case[1:]) for case in named + larger))


def read(path):
    return {name: t.to(TORCH) for name, t in read_safetensors(path)[0].items()}
