"""A trainer for figures: fits a matrix to pairs of bytes, and logs everything that it was given.

LOG is a folder; with IDLE nothing is learned."""
import json
import os
import time

import numpy as np

import skerry

SIDE = 257
model = {"weight": np.zeros((SIDE, SIDE), np.float32)}


def learn(weight, samples):
    """One step of gradient descent, the same in the trainer and in the script that checks it."""
    for tokens in samples:
        now, following = tokens[:-1], tokens[1:]
        for a, b in zip(now, following):
            row = np.exp(weight[a] - weight[a].max())
            row /= row.sum()
            row[b] -= 1
            weight[a] -= np.float32(0.1) * row


def main():
    log = os.environ["LOG"]
    with skerry.join(model) as island:
        for phase in island.phases():
            begun, given, spent = time.time(), [], []
            for batch in phase.batches(lambda samples: [s.tokens.copy() for s in samples]):
                if "IDLE" not in os.environ:
                    learn(model["weight"], batch)
                given.append([t.tolist() for t in batch])
                before = time.perf_counter()
                phase.step(loss=1.0, samples=len(batch))
                spent.append(time.perf_counter() - before)
            name = f"{phase.round}-{phase.replica}-{os.getpid()}-{begun:.6f}.json"
            with open(os.path.join(log, name), "w", encoding="utf-8") as f:
                json.dump({"round": phase.round, "replica": phase.replica, "begun": begun, "steps": given,
                           "step_s": spent}, f)


if __name__ == "__main__":
    main()
