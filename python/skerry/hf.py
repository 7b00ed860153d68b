"""Makes the Trainer of Hugging Face's transformers an island, by one line (after `import skerry.hf`):

    args = transformers.TrainingArguments(..., max_steps=skerry.hf.FOREVER)
    trainer = transformers.Trainer(model, args, train_dataset=..., callbacks=[skerry.hf.Callback(model)])
    trainer.train()

It reads its own data (`data: {kind: none}` in the job file), shuffled by the seed of the first phase; `callback.phase` says
which part of the data belongs to this island.  At the end of each phase the weights go to the worker, and the next ones are
loaded in place; the Trainer's optimiser goes on.  The training stops when the worker has no more work.  Losses are taken from
the Trainer's log, so the callback makes it log every step, and save no checkpoints: the coordinator has the weights.  The
rates of the Trainer's scheduler are multiplied by the job's schedule (train.schedule, train.warmup)."""
from __future__ import annotations

import sys
from typing import Any

import transformers

from ._island import Island, Phase, join
from ._lib import Error
from .accelerate import NO_DEEPSPEED, shuffle

FOREVER = 1 << 40  # steps; the worker ends the training
_WARMUP_MAX = 1 << 30  # steps; more are a share of FOREVER


class Callback(transformers.TrainerCallback):
    """Serves phases from within Trainer.train()."""

    def __init__(self, model: Any):
        self.island: Island = join(model)
        self._phases: Any = None
        self._phase: Phase | None = None
        self._rates: list[Any] = []  # the scheduler's, during a step
        self._lr = 0.0  # with which the last step was made

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
        if getattr(args, "deepspeed_plugin", None):
            raise Error(NO_DEEPSPEED)
        if args.get_warmup_steps(args.max_steps) > _WARMUP_MAX:
            raise Error("the Trainer's warm-up is a share of its steps, which have no end here: set train.warmup in the job file, "
                        "or warmup_steps to a number of steps")
        if args.save_strategy != "no":
            print("skerry: the Trainer saves no checkpoints: the coordinator keeps the weights", file=sys.stderr)
            args.save_strategy = "no"
        args.logging_steps, args.logging_strategy = 1, "steps"
        args.logging_nan_inf_filter = False  # else it reports such a loss as 0
        state.logging_steps = 1
        optimizer = kw["optimizer"]
        self.island._take_optimizer(getattr(optimizer, "optimizer", optimizer))
        self._phases = self.island.phases()
        self._next(control)
        if self._phase is not None:
            shuffle(kw["train_dataloader"], self._phase)

    def _next(self, control: Any) -> None:
        self._phase = next(self._phases, None)
        if self._phase is None:
            control.should_training_stop = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Applies the job's schedule to the rates of the step."""
        groups, scale = kw["optimizer"].param_groups, self._phase.lr_scale if self._phase else 1.0
        self._rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates):
            group["lr"] = rate * scale
        self._lr = float(groups[0]["lr"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Takes it back: some schedulers compute the next rate from this one."""
        for group, rate in zip(kw["optimizer"].param_groups, self._rates):
            group["lr"] = rate

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        """Reports the step whose loss is logged."""
        if self._phase is None or not logs or "loss" not in logs:
            return
        samples = args.train_batch_size * args.gradient_accumulation_steps  # of all devices of the process
        self._phase.step(loss=logs["loss"], samples=samples, lr=self._lr, grad_norm=float(logs.get("grad_norm", 0)))
        if not self._phase.more:
            self._next(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Leaves the island."""
        self.island.__exit__(None, None, None)
