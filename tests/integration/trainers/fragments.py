"""A trainer whose weights are exchanged in mid-phase.  A step of MODE `count` adds one, of `noise` a function of the weights, so
that the time of an exchange matters.  LOG, a folder, gets the weights at the begin of each phase and after each step.  KILL,
`trainer` or `worker`, kills that process once, after step KILL_AT of replica 0.  WRITES, a path: once the first phase's weights
are on the disk, and so handed over, the trainer keeps writing into them; the next attempt begins when that file exists."""
import glob
import os
import signal
import time

import numpy as np

import skerry

mode, log = os.environ["MODE"], os.environ["LOG"]
kill = {"trainer": os.getpid(), "worker": os.getppid()}.get(os.environ.get("KILL"))
model = {name: np.zeros(8, np.float32) for name in "abcd"}


def step(replica, n):
    noise = np.random.default_rng([replica, n])
    for value in model.values():
        value += np.float32(1) if mode == "count" else noise.normal(size=8).astype(np.float32) - np.float32(0.25) * value


def note(replica, n, kind, **more):
    np.savez(os.path.join(log, f"{replica}-{n}-{kind}.npz"), **model, **more)


wrote = os.path.join(log, "wrote")
while os.path.exists(wrote) and not os.path.exists(os.environ["WRITES"]):
    time.sleep(0.02)
with skerry.join(model, exchanges="ALONE" not in os.environ) as island:
    @island.evaluate
    def evaluate(evaluation):
        for batch in evaluation.batches():
            evaluation.add(float(len(batch)), units=len(batch), samples=len(batch))

    for phase in island.phases():
        note(phase.replica, phase.first_step, "begin", goes_on=phase.goes_on)
        while phase.more:
            if phase.kind != "none":
                next(phase.batches(batch=1))
            n = phase.first_step + phase.done_steps + 1
            step(phase.replica, n)
            phase.step(loss=1.0, samples=1)
            note(phase.replica, n, "step")
            if kill and n == int(os.environ["KILL_AT"]) and phase.replica == 0:
                try:
                    open(os.path.join(log, "killed"), "x").close()
                    os.kill(kill, signal.SIGKILL)
                except FileExistsError:
                    pass
        if "WRITES" in os.environ and phase.first_step == 0:
            trainer, shared = os.getpid(), island._items[0].shared
            open(wrote, "w", encoding="utf-8").close()
            if os.fork() == 0:
                while os.getppid() == trainer:
                    if glob.glob("../external-*.end"):
                        shared += 1
                os._exit(0)
