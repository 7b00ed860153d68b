"""Adds one to its weights in each step and writes down its samples: a line of LOG/seen-FIRST_STEP at the end of each step.
LOG/began-FIRST_STEP.npz has the weights at the begin of each phase."""
import os
import time

import numpy as np

import skerry

log = os.environ["LOG"]
model = {"a": np.zeros(8, np.float32), "b": np.zeros(8, np.float16)}

with skerry.join(model) as island:
    for phase in island.phases():
        np.savez(f"{log}/began-{phase.first_step}.npz", **model, steps=phase.steps)
        with open(f"{log}/seen-{phase.first_step}", "w", buffering=1) as seen:
            for batch in phase.batches(batch=1):
                time.sleep(float(os.environ["STEP_S"]))  # a step's work
                for value in model.values():
                    value += 1
                phase.step(loss=1.0, samples=1)
                seen.write(f"{[int(t) for t in batch[0].tokens]}\n")
