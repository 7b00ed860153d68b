"""A trainer that looks for its worker's token, and gives up with its findings as the reason."""
import os

import numpy as np

import skerry

found = []
worker = os.getppid()
for name in ("environ", "cmdline"):
    try:
        with open(f"/proc/{worker}/{name}", "rb") as f:
            data = f.read()
    except PermissionError:
        continue
    if len(data.partition(b"skerry1.")[2].split(b"\0")[0].strip(b"*")) > 0:
        found.append(name)
found += [name for name, value in os.environ.items() if "skerry1." in value]
found += [fd for fd in range(4, 256) if os.path.exists(f"/proc/self/fd/{fd}")]
with skerry.join({"weight": np.zeros(4, np.float32)}) as island:
    for phase in island.phases():
        raise ValueError(f"found {found} of {os.path.basename(os.readlink(f'/proc/{os.getpid()}/exe'))} in session "
                         f"{os.getsid(0) == os.getpid()}")
