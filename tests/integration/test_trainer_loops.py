"""What skerry.hf and skerry.accelerate do around a phase, with those packages played by stubs (tests/trainers has the real ones)."""
import os
import subprocess
import sys

import pytest

from common import HANGS

PACKAGE = os.path.join(os.path.abspath(os.environ.get("SKERRY_BUILD", "build")), "python")

STUBS = """
import sys, types
class Utils(types.ModuleType):
    find_batch_size = staticmethod(lambda batch: 1)
    send_to_device = staticmethod(lambda batch, device: batch)
    set_seed = staticmethod(lambda seed: None)
sys.modules["accelerate"] = types.ModuleType("accelerate")
sys.modules["accelerate.utils"] = sys.modules["accelerate"].utils = Utils("accelerate.utils")
sys.modules["transformers"] = types.ModuleType("transformers")
sys.modules["transformers"].TrainerCallback = object
sys.modules["torch"] = types.ModuleType("torch")
import numpy, skerry, skerry._island
model = {"w": numpy.zeros(2, "float32")}
"""

LOOP = STUBS + """
import skerry.accelerate

class Phase(skerry._island.Phase):
    def __init__(self):
        self.alone, self.steps, self.done_steps, self._since = True, 3, 0, 0

    def step(self, **numbers):
        self.done_steps, self._since = self.done_steps + 1, 0

class Accelerator:
    num_processes, sync_gradients, distributed_type = 1, True, "NO"
    def unwrap_model(self, model): return model
    def backward(self, loss): pass

accelerator = Accelerator()
loader = [range(5), []][len(sys.argv) - 1]
loop = skerry.accelerate.Loop(accelerator, model, loader=loader)
loop.island.phases = lambda: iter([Phase(), Phase()])
for batch in loop:
    accelerator.backward(numpy.float32(1))
    print(batch, end=" ")
"""


def run(program, *args, **env):
    return subprocess.run([sys.executable, "-c", program, *args], env={"PYTHONPATH": PACKAGE, **env}, capture_output=True, text=True,
                          timeout=HANGS, check=False)


def test_a_loop_goes_on_in_its_loader_where_the_last_phase_ended():
    done = run(LOOP)
    assert done.stdout.split() == ["0", "1", "2", "3", "4", "0"], (done.stdout, done.stderr)


def test_a_loader_without_batches_is_refused():
    done = run(LOOP, "empty")
    assert "the loader has no batches" in done.stderr and done.stdout == "", (done.stdout, done.stderr)


ACCUMULATES = STUBS + """
class Phase(skerry._island.Phase):
    def __init__(self):
        self.alone, self.batch, self.given, self._since = False, 1, 0, 0

    more = property(lambda self: self.given < 6)  # its time is over in the second of two steps

    def _take(self, most):
        return [skerry.Sample(b"x")] * most

    def step(self, **numbers):
        self._since = 0

phase = Phase()
since = 0
for batch in phase.limit(range(99)) if sys.argv[1:] else phase.batches():
    phase.given += 1
    since += 1
    if since == 4:
        phase.step()
        print(since)
        since = 0
print("left", since)
"""


@pytest.mark.parametrize("args", [[], ["own"]], ids=["data of the job", "own loader"])
def test_a_phase_does_not_end_within_a_step(args):
    """Else the gradients of half a step, of weights that are no more, would be a part of the next phase's first step."""
    done = run(ACCUMULATES, *args)
    assert done.stdout.split() == ["4", "4", "left", "0"], (done.stdout, done.stderr)


FAILS = STUBS + """
import skerry.accelerate
class Accelerator:
    num_processes, distributed_type = 1, sys.argv[1]
    def unwrap_model(self, model): return model
    def backward(self, loss): pass
skerry._island.lib.skerry_fail = lambda handle, reason: print("told:", reason.decode())
skerry._island.lib.skerry_lack_memory = lambda handle, reason: print("lacks memory:", reason.decode())
class OutOfMemoryError(RuntimeError): pass  # as PyTorch's
for batch in skerry.accelerate.Loop(Accelerator(), model, loader=range(5), alone=skerry.Alone(steps=3)):
    raise eval(sys.argv[2])
"""


@pytest.mark.parametrize("error, told", [
    ("ValueError('odd')", "told: ValueError: odd"),
    ("MemoryError('too much')", "lacks memory: MemoryError: too much"),
    ("OutOfMemoryError('CUDA')", "lacks memory: OutOfMemoryError: CUDA"),
    ('RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', "lacks memory: RuntimeError: DefaultCPUAllocator: can't allocate memory"),
])
def test_what_ends_a_loop_is_told_to_the_worker(error, told):
    """Before its socket closes: the traceback may come too late, and the worker keeps only the last lines."""
    done = run(FAILS, "NO", error)
    assert done.stdout == told + "\n" and "Traceback" in done.stderr, (done.stdout, done.stderr)


def test_deepspeed_is_refused():
    done = run(FAILS, "DEEPSPEED", "ValueError()")
    assert "leave DeepSpeed out" in done.stderr, done.stderr


def test_only_the_first_rank_of_torchrun_joins():
    """Another would train alone, beside the swarm."""
    done = run(STUBS + """
import skerry.torchrun as torchrun
torchrun._start = lambda self, *args, **keys: print(keys["env"])
for rank in "0", "1":
    torchrun._popen(None, [], env={"RANK": rank, "SKERRY_TRAINER_FD": "3"})
""")
    first, second = (eval(line) for line in done.stdout.splitlines())
    assert first == {"RANK": "0", "SKERRY_TRAINER_FD": "3"} and second == {"RANK": "1", "SKERRY_TRAINER_RANK": "1"}, done.stderr
    done = run(STUBS + "skerry.join(model)", **second)
    assert "rank 1 of skerry.torchrun" in done.stderr and "only rank 0 joins" in done.stderr, done.stderr


def test_a_trainer_of_several_processes_is_refused():
    program = STUBS + """
import skerry.hf
args = types.SimpleNamespace(world_size=int(sys.argv[1]), max_steps=9, get_warmup_steps=lambda n: 0, save_strategy="no",
                             deepspeed_plugin=sys.argv[2:])
skerry.hf.Callback(model).on_train_begin(args, types.SimpleNamespace(), types.SimpleNamespace(), optimizer=None, train_dataloader=None)
"""
    done = run(program, "2")
    assert "the Trainer runs 2 processes, but an island of this kind is one" in done.stderr, done.stderr
    assert run(program, "1").returncode == 0
    assert "leave DeepSpeed out" in run(program, "1", "zero").stderr
