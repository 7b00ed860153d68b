"""A trainer that reports numbers of its own: their values at each step are known, and one is not reported at every step."""
import math
import os
import signal
import struct

import numpy as np

import skerry

model = {"weight": np.zeros(4, np.float32)}
extra = {name: 1.0 for name in os.environ.get("EXTRA", "").split(":") if name}
def end_raw(names):
    """Ends an evaluation as a library without checks would; the connection cannot be used after it."""
    numbers = b"".join(struct.pack("<BBBB", 0x22, len(n) + 11, 0x0A, len(n)) + n.encode() + struct.pack("<Bd", 0x11, 0.25) for n in names)
    done = struct.pack("<BdBB", 0x11, 20.0, 0x18, 10) + numbers  # loss_sum, units
    message = b"\x22" + bytes([len(done) & 127 | 128, len(done) >> 7]) + done
    os.write(int(os.environ["SKERRY_TRAINER_FD"]), struct.pack("<I", len(message)) + message)
    signal.pause()


with skerry.join(model) as island:
    @island.evaluate
    def evaluate(evaluation):
        seen = 0
        for batch in evaluation.batches(batch=7):
            seen += len(batch)
            numbers = {"accuracy": float(seen), "own": math.nan if seen == 7 else 0.5}
            if seen == 10 and "RAW" in os.environ:
                end_raw(["two words", "first", *(f"more{i}" for i in range(40))])
            evaluation.add(1.0, units=len(batch), samples=len(batch), **numbers, **extra)

    for phase in island.phases():
        for batch in phase.batches():
            step = phase.first_step + phase.done_steps + 1
            own = {"accuracy": step / 64 + phase.replica, "top-5": math.nan if step % 2 else 1.0 / step}
            if step == 3:
                own["once.only"] = -1e30
            elif step % 2 == 0:
                own |= extra
            phase.step(loss=2.0, samples=len(batch), **own)
