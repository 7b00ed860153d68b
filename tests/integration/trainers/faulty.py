"""A trainer with the fault MODE, with ONCE only on its first attempt (a file marks it), else always.  If ONCE is a path, the next
attempt begins when that file exists: until then the status shows the fault.  With ONCE=small it has the fault on the worker of that
name, on each attempt."""
import mmap
import os
import signal
import sys
import time

import numpy as np

import skerry

mode, once = os.environ["MODE"], os.environ.get("ONCE")
first = not os.path.exists("went-wrong")
while not first and once and "/" in once and not os.path.exists(once):
    time.sleep(0.02)


def goes_wrong(what):
    global first
    if mode != what or (once and not first) or (once == "small" and "/work-small/" not in os.getcwd()):
        return False
    if once != "small":
        first = False
        open("went-wrong", "w").close()
    return True


def keep_writing(shared):
    """Keeps writing into weights that were handed over, until the trainer is ended: at their end, which the worker reads last."""
    end, trainer = shared.reshape(-1)[-8:], os.getpid()
    if os.fork() == 0:
        while os.getppid() == trainer:
            end += 1
        os._exit(0)


if goes_wrong("silent"):
    print("I say nothing", flush=True)
    sys.exit(3)
if goes_wrong("mute"):
    print("about to fall silent (mute)", flush=True)
    signal.pause()
rows = 1 << 20 if mode.endswith("writes") else 4  # so many that whoever writes has a turn while they are read
model = {"layers.0.weight": np.zeros((rows, 8), np.float32), "layers.1.weight": np.ones((8,), np.float32)}
if goes_wrong("names"):
    model = {b"\xff\xfe".decode("latin-1") * 200: np.zeros(3, np.float32)}
saved_nan, saved_writes = goes_wrong("saved_nan"), goes_wrong("saved_writes")
if goes_wrong("integers"):
    model["count"] = np.zeros(3, np.int64)
with skerry.join(model) as island:
    if mode == "integers":
        items = island._items
        for item in items:
            item.buffer = False
        skerry._island._model.items_of = lambda model: items
    for phase in island.phases():
        for step, batch in enumerate(phase.batches()):
            if goes_wrong("dies"):
                print("about to die", flush=True)
                if os.fork() == 0:  # who stays has the socket
                    signal.pause()
                os.kill(os.getpid(), signal.SIGKILL)
            if goes_wrong("hangs"):
                print("about to fall silent (hangs)", flush=True)
                signal.pause()
            if goes_wrong("raises"):
                raise ValueError("this model cannot be trained")
            if goes_wrong("lacks"):
                raise MemoryError("no room")
            if goes_wrong("memory"):
                eaten = mmap.mmap(-1, 2 << 30)  # shared memory is no "data" of a process
                for at in range(0, len(eaten), 4096):
                    eaten[at] = 1
                time.sleep(60)
            model["layers.0.weight"] += 0.01
            if goes_wrong("weights"):
                model["layers.1.weight"][3] = np.nan
            if saved_writes and step == 0:
                keep_writing(island._items[0].shared)
            if mode.startswith("saved"):
                time.sleep(0.01)  # a step's work
                with open(f"{mode}.{'spoilt' if saved_nan or saved_writes else 'well'}", "w", encoding="utf-8") as said:
                    said.write(str(step + 1))
            model["layers.1.weight"][3] = np.nan if saved_nan else model["layers.1.weight"][3]
            loss = np.nan if goes_wrong("nan") else 1.0
            phase.step(loss=loss, samples=len(batch) * (1000 if goes_wrong("counts") else 1))
            model["layers.1.weight"][3] = 1 if saved_nan else model["layers.1.weight"][3]  # nobody sees it at the end
        if goes_wrong("writes"):
            keep_writing(island._items[0].shared)
        if goes_wrong("babbles"):
            os.write(int(os.environ["SKERRY_TRAINER_FD"]), b"\x05\x00\x00\x00hello")
