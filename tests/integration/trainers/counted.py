"""A trainer whose weights count how often it has read each text; a text begins with its number.  A step takes STEP_S; with
KILLS, a folder, the first phase of each round kills its worker in the middle."""
import os
import signal
import time

import numpy as np

import skerry

model = {"seen": np.zeros(int(os.environ["TEXTS"]), np.float32)}


def kill_worker(r, step):
    if "KILLS" not in os.environ or step != 5 * r + 3:
        return
    try:
        open(os.path.join(os.environ["KILLS"], f"round-{r}"), "x").close()
    except FileExistsError:
        return
    os.kill(os.getppid(), signal.SIGKILL)


with skerry.join(model) as island:
    for phase in island.phases():
        for batch in phase.batches():
            for sample in batch:
                number = sample.tokens[sample.tokens < 256][:4]  # the rest of the vocabulary begins and ends texts
                model["seen"][int(bytes(number.astype(np.uint8)))] += 1
            time.sleep(float(os.environ["STEP_S"]))  # as if it computed
            phase.step(loss=1.0, samples=len(batch))
            kill_worker(phase.round, phase.done_steps)
