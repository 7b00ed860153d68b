"""Makes the Trainer of Hugging Face's transformers an island, by one line (after `import skerry.hf`):

    args = transformers.TrainingArguments(..., max_steps=skerry.hf.FOREVER)
    trainer = transformers.Trainer(model, args, train_dataset=..., callbacks=[skerry.hf.Callback(model)])
    trainer.train()

It reads its own data (`data: {kind: none}` in the job file); `callback.phase` says which part of the data belongs to
this island.  At the end of each phase the weights go to the worker, and the next ones are loaded in place; the Trainer's
optimiser goes on.  The training stops when the worker has no more work.  Losses are taken from the Trainer's log, so the
callback makes it log every step."""
from __future__ import annotations

from typing import Any

import transformers

from ._island import Island, Phase, join
from ._lib import Error


FOREVER = 1 << 40  # steps; the worker ends the training


class Callback(transformers.TrainerCallback):
    """Serves phases from within Trainer.train()."""

    def __init__(self, model: Any):
        self.island: Island = join(model)
        self._phases: Any = None
        self._phase: Phase | None = None

    @property
    def phase(self) -> Phase:
        """The phase under way, from the first batch on."""
        if self._phase is None:
            raise Error("there is no phase before Trainer.train() has begun, nor after it has ended")
        return self._phase

    def on_train_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Waits for the first phase."""
        if args.world_size > 1:
            raise Error(f"the Trainer runs {args.world_size} processes, but an island of this kind is one: see "
                        "examples/trainer-ddp for several")
        args.logging_steps, args.logging_strategy = 1, "steps"
        args.logging_nan_inf_filter = False  # else it reports such a loss as 0
        state.logging_steps = 1
        self._phases = self.island.phases()
        self._next(control)

    def _next(self, control: Any) -> None:
        self._phase = next(self._phases, None)
        if self._phase is None:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        """Reports the step whose loss is logged."""
        if self._phase is None or not logs or "loss" not in logs:
            return
        samples = args.train_batch_size * args.gradient_accumulation_steps  # of all devices of the process
        self._phase.step(loss=logs["loss"], samples=samples, lr=float(logs.get("learning_rate", 0)),
                         grad_norm=float(logs.get("grad_norm", 0)))
        if not self._phase.more:
            self._next(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Leaves the island."""
        self.island.__exit__(None, None, None)
