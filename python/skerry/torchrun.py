"""torchrun for an island of several devices: `trainer.command: python3 -m skerry.torchrun --nproc-per-node 8 train.py`.

What torchrun starts inherits no descriptor and has a session of its own.  This is torchrun, but that rank 0 gets the socket of
the worker, and that all ranks stay in the worker's session, whose memory it counts, and end with torchrun, which it kills.  The
other ranks join no island, and learn from rank 0 what is to be done (examples/trainer-ddp)."""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import Any

FD = "SKERRY_TRAINER_FD"
PR_SET_PDEATHSIG = 1
_start = subprocess.Popen.__init__


def _rank() -> None:
    """In the child: a group, by which torchrun ends it, and the end of torchrun."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _popen(self: subprocess.Popen, *args: Any, **keys: Any) -> None:
    env = keys.get("env")
    if env is not None and "RANK" in env and FD in env:
        keys["start_new_session"], keys["preexec_fn"] = False, _rank
        if env["RANK"] == "0":
            keys["pass_fds"] = (int(env[FD]),)
        else:
            keys["env"] = {name: value for name, value in env.items() if name != FD}
    _start(self, *args, **keys)


def main() -> None:
    from torch.distributed.run import main as run
    if FD in os.environ:
        os.set_inheritable(int(os.environ[FD]), False)
        subprocess.Popen.__init__ = _popen  # type: ignore[method-assign]
    run()


if __name__ == "__main__":
    main()
