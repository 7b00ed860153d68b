#!/usr/bin/env python3
"""The memory that PyTorch keeps in a training step of DiT-XL/2, as one object of JSON: {"bytes": {batch: bytes}}.

The tensors that autograd saves are counted by hooks, on the CPU under autocast to bf16, with fused attention;
storage that several share is counted once, parameters are not.  They grow with depth, with the batch and with
both, so that few blocks and samples tell those of 28 blocks: of sizes in between, the prediction is checked.
Beside them lie weights, gradients and both moments in f32.
"""
import json
import sys

import torch
from torch import nn
from torch_dit import DiT

SIZE, PATCH, DIM, HEADS, CLASSES, DEPTH = 32, 2, 1152, 16, 1000, 28


def saved(depth, batch):
    """(bytes that are kept, number of parameters)."""
    torch.manual_seed(0)
    model = DiT(SIZE, PATCH, DIM, depth, HEADS, CLASSES)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage  # kept alive: no other gets its address
        return tensor

    x, t = torch.randn(batch, 3, SIZE, SIZE), torch.rand(batch)
    y = torch.randint(0, CLASSES, (batch,))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            v = model(x, t, y)
        loss = nn.functional.mse_loss(v.float(), x)
    loss.backward()
    return sum(s.nbytes() for s in held.values()), sum(p.numel() for p in model.parameters())


def main():
    (one, p1), (two, p2) = saved(1, 2), saved(2, 2)
    more, both = saved(1, 4)[0], saved(2, 4)[0]
    each = (both - more - two + one) / 2  # of a block and a sample
    block, sample = two - one - 2 * each, (more - one) / 2 - each
    rest = one - block - 2 * sample - 2 * each

    def predicted(depth, batch):
        return rest + depth * block + batch * sample + depth * batch * each

    assert saved(3, 3)[0] == predicted(3, 3), "what is saved does not grow with depth and batch alone"
    parameters = p1 + (DEPTH - 1) * (p2 - p1)
    print(json.dumps({"bytes": {batch: int(predicted(DEPTH, batch)) + 16 * parameters for batch in (128, 256)},
                      "row_of_block": each / (SIZE // PATCH) ** 2 / DIM, "parameters": parameters}))


if __name__ == "__main__":
    sys.exit(main())
