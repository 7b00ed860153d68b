"""A trainer of which only the small tensors travel: 400,000 parameters beside ten times as many that stay."""
import numpy as np

import skerry

rng = np.random.default_rng(0)
model = {"base": np.zeros((1000, 4000), np.float32), "lora_a": np.zeros((1000, 200), np.float32),
         "lora_b": np.zeros((200, 1000), np.float32)}
with skerry.join(model) as island:
    for phase in island.phases():
        for batch in phase.batches():
            model["lora_a"] += rng.standard_normal((1000, 200), np.float32)
            model["lora_b"] += rng.standard_normal((200, 1000), np.float32)
            phase.step(loss=1.0, samples=len(batch))
