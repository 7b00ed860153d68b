"""A trainer with BatchNorm, whose replicas read different numbers; it writes down the buffers at begin and end of each phase."""
import json
import os

import torch

import skerry

model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
model[1].bias.requires_grad_(False)  # frozen: it stays here
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def buffers():
    return {name: value.tolist() for name, value in model.named_buffers()}


compiled = torch.nn.Module()
compiled._orig_mod = model  # as torch.compile wraps it
with skerry.join(compiled) as island:
    for phase in island.phases():
        torch.manual_seed(phase.seed % 2**31)
        began = buffers()
        while phase.more:
            loss = model(torch.randn(16, 3) * (phase.replica + 2) + 100 * phase.replica).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            phase.step(loss=loss, samples=1)
        model[0].num_batches_tracked = model[0].num_batches_tracked + 4 * phase.replica  # another tensor in its place
        with open(os.path.join(os.environ["LOG"], f"{phase.round}-{phase.replica}.json"), "w", encoding="utf-8") as f:
            json.dump([began, buffers()], f)
