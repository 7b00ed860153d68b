"""torchrun for an island of several devices: `trainer.command: python3 -m skerry.torchrun --nproc-per-node 8 train.py`.

Processes that torchrun starts inherit no descriptor and have sessions of their own.  This is torchrun with two changes: rank 0
gets the worker's socket, and all ranks stay in the worker's session, whose memory the worker counts, and end with torchrun,
which the worker kills.  The other ranks join no island, and get their work from rank 0 by tell() and wait()
(examples/trainer-ddp)."""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import Any

FD = "SKERRY_TRAINER_FD"
OTHER = "SKERRY_TRAINER_RANK"  # by which join() refuses any rank but 0
PR_SET_PDEATHSIG = 1
_start = subprocess.Popen.__init__


def _rank() -> None:
    """Gives the child a group of its own, by which torchrun ends it, and ends it with torchrun."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _popen(self: subprocess.Popen, *args: Any, **keys: Any) -> None:
    env = keys.get("env")
    if env is not None and "RANK" in env and FD in env:
        keys["start_new_session"], keys["preexec_fn"] = False, _rank
        if env["RANK"] == "0":
            keys["pass_fds"] = (int(env[FD]),)
        else:
            keys["env"] = {**{name: value for name, value in env.items() if name != FD}, OTHER: env["RANK"]}
    _start(self, *args, **keys)


def tell(what: Any = None) -> Any:
    """Rank 0's value, to all ranks; each calls it."""
    import torch.distributed as dist
    box = [what]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def wait() -> Any:
    """tell() of the other ranks between phases; None, too, if rank 0 is gone."""
    with contextlib.suppress(RuntimeError):
        return tell()


def main() -> None:
    from torch.distributed.run import main as run
    if FD in os.environ:
        os.set_inheritable(int(os.environ[FD]), False)
        subprocess.Popen.__init__ = _popen  # type: ignore[method-assign]
    run()


if __name__ == "__main__":
    main()
