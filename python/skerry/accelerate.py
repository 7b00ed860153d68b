"""Makes a training loop of Hugging Face's accelerate an island, by one line and `import skerry.accelerate`:
`for batch in loader:` becomes

    for batch in skerry.accelerate.Loop(accelerator, model, optimizer, loader):

The rest of the loop stays, with `accelerator.backward(loss)` and `accelerator.accumulate(model)`.  The loader reads its
own data (`data: {kind: none}` in the job file), which it shuffles by the seed of the first phase, and a phase goes on in it
where the one before has ended; with `collate=` in its place the batches are made of the samples of the phase, each once.
`Loop.phase` says which part of the data belongs to this island."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import accelerate.utils

from ._island import Alone, Island, Phase, Sample, endless, join
from ._lib import Error

NO_DEEPSPEED = ("DeepSpeed keeps copies of the weights of its own, which would replace those that an island gets from the swarm: "
                "leave DeepSpeed out; examples/trainer-fsdp divides a model among devices")


def shuffle(loader: Any, phase: Phase) -> None:
    """Gives a loader that shuffles the phase's seed.  The script's own is the same everywhere: all islands would train on the
    same batches, and a trainer that was restarted on its first ones again."""
    if phase.alone:
        return
    accelerate.utils.set_seed(phase.seed % 2**32)
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if hasattr(sampler, "initial_seed"):  # accelerate's own sampler, which has the script's seed
        sampler.initial_seed = phase.seed % 2**63
    elif getattr(sampler, "generator", None) is not None:
        sampler.generator.manual_seed(phase.seed % 2**63)


class Loop:
    """The batches of all phases, one after the other.  A step ends when the gradients have been synchronised; its loss is the
    mean of the losses that accelerator.backward() got in it."""

    def __init__(self, accelerator: Any, model: Any, optimizer: Any = None, loader: Iterable[Any] | None = None,
                 collate: Callable[[list[Sample]], Any] | None = None, alone: Alone | None = None):
        if accelerator.num_processes > 1:
            raise Error(f"accelerate runs {accelerator.num_processes} processes, but an island of this kind is one: see "
                        "examples/trainer-ddp for several")
        if accelerator.distributed_type == "DEEPSPEED":
            raise Error(NO_DEEPSPEED)
        if (loader is None) == (collate is None):
            raise Error("a Loop takes either a loader of its own data, or collate, which makes batches of the job's samples")
        self.phase: Phase | None = None
        self.island: Island = join(accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer), alone)
        self._accelerator, self._loader, self._collate = accelerator, loader, collate
        self._batches_left: Iterator[Any] | None = None  # of the loader
        self._losses: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        backward = self._accelerator.backward

        def noted(loss: Any, **kw: Any) -> None:
            self._losses.append(loss.item())
            backward(loss, **kw)
        self._accelerator.backward = noted
        try:
            for self.phase in self.island.phases():
                yield from self._steps(self.phase)
            self.island.__exit__(None, None, None)  # not after an exception: it is told to the worker when it ends the script
        finally:
            self._accelerator.backward = backward

    def _batches(self, phase: Phase) -> Iterator[Any]:
        if self._loader is not None:
            if self._batches_left is None:
                shuffle(self._loader, phase)
                self._batches_left = endless(self._loader)
            yield from phase.limit(self._batches_left)
            return
        part = max(1, phase.batch // self._accelerator.gradient_accumulation_steps)
        for batch in phase.batches(self._collate, part):
            yield accelerate.utils.send_to_device(batch, self._accelerator.device)

    def _steps(self, phase: Phase) -> Iterator[Any]:
        samples = 0
        for batch in self._batches(phase):
            yield batch
            samples += accelerate.utils.find_batch_size(batch) or 0
            if not self._accelerator.sync_gradients:
                continue
            if not self._losses:
                raise Error("accelerator.backward() was not called in this step, so its loss is not known")
            phase.step(loss=sum(self._losses) / len(self._losses), samples=samples)
            samples, self._losses = 0, []
