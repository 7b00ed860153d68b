"""A trainer of phases bounded by time: it says between which times it asked the schedule, for each step, and what that gave."""
import json
import os
import time

import numpy as np

import skerry

with skerry.join({"weight": np.zeros(4, np.float32)}) as island:
    for phase in island.phases():
        told, begun = [], time.monotonic()
        while phase.more:
            before, scale = time.monotonic(), phase.lr_scale
            told.append((before - begun, scale, time.monotonic() - begun))
            time.sleep(0.02)
            phase.step(loss=1.0, samples=1)
        with open(f"{os.environ['LOG']}/{phase.round}.json", "w", encoding="utf-8") as f:
            json.dump(told, f)
