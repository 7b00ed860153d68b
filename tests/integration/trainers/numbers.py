"""A trainer that tells numbers of its own: what they are at a step is known, and one is not told at every step."""
import math
import os

import numpy as np

import skerry

model = {"weight": np.zeros(4, np.float32)}
extra = {name: 1.0 for name in os.environ.get("EXTRA", "").split(":") if name}
with skerry.join(model) as island:
    for phase in island.phases():
        for batch in phase.batches():
            step = phase.first_step + phase.done_steps + 1
            own = {"accuracy": step / 64 + phase.replica, "top-5": math.nan if step % 2 else 1.0 / step}
            if step == 3:
                own["once.only"] = -1e30
            elif step % 2 == 0:
                own |= extra
            phase.step(loss=2.0, samples=len(batch), **own)
