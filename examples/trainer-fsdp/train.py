"""An island of several devices with FSDP, none of which has the whole model.  Rank 0 joins the swarm with a second instance on
the CPU, which is never trained, and instructs the others.

    trainer: {command: python3 -m skerry.torchrun --standalone --nproc-per-node 8 train.py, files: .}"""
import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import skerry
from skerry.torchrun import tell, wait


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def scatter(model, whole):
    """From the whole weights of rank 0 to the shards of all ranks."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole.state_dict() if whole else {}, options=options)


def gather(model, whole):
    """From the shards of all ranks to the whole weights of rank 0."""
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if whole:
        whole.load_state_dict(full)


def step(model, optimizer, batch):
    """One step of all ranks, each with its part of the batch; returns the mean loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (t.to(next(model.parameters()).device)[rank::world] for t in batch)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # FSDP averages the gradients over ranks: with parts of equal size, over the batch
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / world


def data(phase):
    """Batches of the script's own (data: {kind: none}), which the ranks can share equally."""
    g = torch.Generator().manual_seed((phase.replica << 32) + phase.first_step)
    while phase.more:
        x = torch.randn(phase.batch, 8, generator=g)
        yield x, x @ torch.arange(16.0).view(8, 2) / 16


def begin(model, optimizer, whole, goes_on):
    scatter(model, whole)
    if not goes_on:  # the state is another replica's, or the trainer was restarted
        optimizer.state.clear()


def follow(model, optimizer):
    """The loop of the other ranks."""
    while (goes_on := wait()) is not None:
        begin(model, optimizer, None, goes_on)
        while (batch := tell()) is not None:
            step(model, optimizer, batch)
        gather(model, None)


def lead(model, optimizer):
    torch.manual_seed(0)
    whole = build()
    with skerry.join(whole) as island:
        for phase in island.phases():
            tell(phase.goes_on)
            begin(model, optimizer, whole, phase.goes_on)
            for batch in data(phase):
                tell(batch)
                phase.step(loss=step(model, optimizer, batch), samples=phase.batch)
            tell(None)
            gather(model, whole)
    tell(None)


if __name__ == "__main__":
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    # Between phases ranks wait for rank 0 as long as a round lasts, which is no failure.
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=datetime.timedelta(days=365))
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    model = build().to(kind)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    (lead if dist.get_rank() == 0 else follow)(model, optimizer)
    dist.destroy_process_group()
