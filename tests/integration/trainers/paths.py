"""A trainer of two blocks and an embedding; a phase adds the number of its path plus one to each.  It writes down whose
samples it got."""
import json
import os

import numpy as np

import skerry

model = {name: np.zeros(3, np.float32) for name in ("embed.weight", "layers.0.weight", "layers.1.weight")}
with skerry.join(model) as island:
    @island.evaluate
    def evaluate(evaluation):
        for batch in evaluation.batches():
            evaluation.add(float(len(batch)), units=len(batch), samples=len(batch))

    for phase in island.phases():
        seen = []
        for batch in phase.batches():
            seen += [sample.tokens.tolist() for sample in batch]
            phase.step(loss=1.0, samples=len(batch))
        for value in model.values():
            value += phase.path + 1
        with open(os.path.join(os.environ["LOG"], f"{phase.path}-{phase.round}.json"), "w", encoding="utf-8") as f:
            json.dump(seen, f)
