"""An island of several devices with DistributedDataParallel: rank 0 joins the swarm and instructs the others.

    trainer: {command: python3 -m skerry.torchrun --standalone --nproc-per-node 8 train.py, files: .}"""
import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import skerry
from skerry.torchrun import tell, wait


def share(model):
    """Weights from rank 0 to the others."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def begin(model, optimizer, goes_on):
    """Weights, and the optimiser's state where it is not that of the phase before."""
    share(model)
    if not goes_on:
        state = tell(optimizer.state_dict()["state"] if dist.get_rank() == 0 else None)
        optimizer.state.clear()
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def step(ddp, optimizer, batch):
    """One step of all ranks, each with its part of the batch; returns the mean loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (t.to(next(ddp.parameters()).device)[rank::world] for t in batch)
    loss = nn.functional.mse_loss(ddp(x), y)
    optimizer.zero_grad()
    loss.backward()  # DDP averages the gradients over ranks: with parts of equal size, over the batch
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


def follow(ddp, optimizer):
    """The loop of the other ranks."""
    while (goes_on := wait()) is not None:
        begin(ddp.module, optimizer, goes_on)
        while (told := tell()) is not None:
            batch, came = told
            if came:
                share(ddp.module)
            step(ddp, optimizer, batch)


def lead(ddp, optimizer):
    with skerry.join(ddp.module, optimizer=optimizer, exchanges=True) as island:
        for phase in island.phases():
            tell(phase.goes_on)
            begin(ddp.module, optimizer, phase.goes_on)
            came = False
            for batch in data(phase):
                tell((batch, came))
                if came:
                    share(ddp.module)  # newer weights have arrived (outer.fragments)
                came = phase.step(loss=step(ddp, optimizer, batch), samples=phase.batch)
            tell(None)
    tell(None)


if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    # Between phases ranks wait for rank 0 as long as a round lasts, which is no failure.
    dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(days=365))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ddp = DistributedDataParallel(model)
    (lead if dist.get_rank() == 0 else follow)(ddp, optimizer)
    dist.destroy_process_group()
