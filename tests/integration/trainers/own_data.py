"""A trainer that reads its own data: each replica a part, by its number.  The weights, new arrays each step, move towards the
mean of all data.  A forked process ends in the first phase."""
import os

import numpy as np

import skerry

model = {"mean": np.zeros(4, np.float32), "seen": np.zeros(1, np.int64)}
data = np.arange(40, dtype=np.float32).reshape(10, 4)
with skerry.join(model) as island:
    @island.sample
    def write(drawing):
        return f"{drawing.prompt}, {drawing.tokens} tokens"

    for phase in island.phases():
        if phase.first_step == 0 and os.fork() == 0:
            raise SystemExit
        mine = data[phase.replica::phase.replicas]
        for row in phase.limit(mine):
            model["mean"] = model["mean"] + 0.1 * (row - model["mean"])
            model["seen"] += 1  # a buffer: it stays here
            phase.step(loss=float(((row - model["mean"]) ** 2).mean()), samples=1, norm=float(np.abs(row).max()))
