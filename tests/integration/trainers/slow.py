"""A trainer that needs START_S to start and FIRST_S for its first step, and computes all the while; the first of all trainers (by
the files that they leave in MARKS) is fast."""
import os
import time

import numpy as np

marks = os.environ["MARKS"]
slow = bool(os.listdir(marks))
open(os.path.join(marks, str(os.getpid())), "x").close()


def work(seconds):
    began = time.monotonic()
    while slow and time.monotonic() - began < seconds:
        pass


work(float(os.environ["START_S"]))
import skerry  # noqa: E402

model = {"weight": np.zeros(8, np.float32)}
first = float(os.environ["FIRST_S"])
with skerry.join(model) as island:
    for phase in island.phases():
        for _ in phase.limit(range(1 << 20)):
            work(first)
            first = 0
            time.sleep(0.01)  # as if it computed
            model["weight"] += 0.01
            phase.step(loss=1.0, samples=1)
