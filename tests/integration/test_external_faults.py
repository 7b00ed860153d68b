"""Faults of trainers: they cost the lease, with the reason in the status, and never the worker."""
import os
import pathlib
import threading

import pytest

from common import children_of, wait_until
from swarm import running
from test_external import FAULTY, HERE, write_program

FAULTY_PY = f"{HERE}/trainers/faulty.py"


@pytest.fixture(scope="module")
def lair(tmp_path_factory):
    """A swarm with one worker, which outlives all faults of its trainers."""
    with running(tmp_path_factory.mktemp("lair") / "swarm") as s:
        process = s.worker("one", "--allow-trainers", "--trainer-memory", "512MiB")
        s.one = process
        yield s
        assert process.poll() is None, "a trainer has cost the worker"


def reasons(s, told):
    """The sentences of a job's status."""
    job = s.job(told)
    tasks = s.get(f"/v1/tasks?job={told}").json()["items"]
    return " ".join([job["reason"], *(w["why"] for w in job["waiting_for"]), *(t["reason"] for t in tasks)])


@pytest.mark.parametrize("mode, said", [
    ("dies", "was ended by signal 9 (Killed), as the kernel does when memory is short; its last lines: about to die"),
    ("raises", "the trainer gave up: ValueError: this model cannot be trained (train.py, line "),
    ("nan", "the trainer's loss is no finite number after 1 steps"),
    ("weights", "layers.1.weight"),
    ("counts", "samples, but was given"),
    ("writes", "wrote its weights after it had handed them over"),
    ("babbles", "that are no message"),
])
def test_goes_wrong_once(lair, tmp_path, mode, said):
    """The next attempt, with a new process, does the phase."""
    seen = tmp_path / "seen"
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode=mode, once=str(seen), command="PYTHON train.py", more="")
    told = lair.submit(job)
    wait_until(lambda: said in reasons(lair, told), 15, said)
    seen.touch()
    lair.wait_job(told, "done", 20)


@pytest.mark.parametrize("mode, said", [("memory", "of memory, more than the 512.0 MiB"), ("lacks", "MemoryError: no room")])
def test_a_larger_machine_does_what_one_has_no_memory_for(tmp_path, mode, said):
    """Which is no failure of the trainer, nor of the worker."""
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode=mode, once="small", command="PYTHON train.py", more="")
    with running(tmp_path / "swarm") as s:
        s.worker("small", "--allow-trainers", "--trainer-memory", "512MiB")
        told = s.submit(job)
        wait_until(lambda: said in reasons(s, told) and "the fault may be this machine's" in reasons(s, told), 30, said)
        s.worker("large", "--allow-trainers")
        s.wait_job(told, "done", 30)
        assert all(w["tasks_failed"] == 0 for w in s.get("/v1/status").json()["workers"])


STEPS = 300  # of 10 ms


def saves(lair, tmp_path, mode):
    """The job file of a job with a snapshot every tenth of a second."""
    text = FAULTY.replace("rounds: 2, steps: 4", f"rounds: 1, steps: {STEPS}, snapshot: 0.1")
    return lair.submit(write_program(tmp_path, FAULTY_PY, text, mode=mode, once=str(tmp_path / "seen"), command="PYTHON train.py", more=""))


def steps_of(lair, mode, how):
    return int(next(pathlib.Path(lair.folder).glob(f"**/{mode}.{how}")).read_text(encoding="utf-8"))


def test_writes_while_it_is_saved(lair, tmp_path):
    """The fault costs this attempt before its end; the next one does the phase."""
    told = saves(lair, tmp_path, "saved_writes")
    said = "wrote its weights after it had handed them over"
    wait_until(lambda: said in reasons(lair, told), 15, said)
    (tmp_path / "seen").touch()
    lair.wait_job(told, "done", 20)
    assert steps_of(lair, "saved_writes", "spoilt") < STEPS == steps_of(lair, "saved_writes", "well")


def test_is_not_saved_with_bad_weights(lair, tmp_path):
    """Weights that are not finite while a snapshot is made are not sent, and the phase does not fail."""
    told = saves(lair, tmp_path, "saved_nan")
    lair.wait_job(told, "done", 20)
    assert steps_of(lair, "saved_nan", "spoilt") == STEPS
    assert "the phase is not saved at step" in lair.log("one") and "layers.1.weight holds a value that is not finite" in lair.log("one")
    assert [t["saved_steps"] for t in lair.get(f"/v1/tasks?job={told}").json()["items"] if t["kind"] == "train"] == [0]


@pytest.mark.parametrize("mode, command, more, said", [
    ("", "./not-there", "", "exit status 127"),
    ("silent", "PYTHON train.py", "", "ended with exit status 3; its last lines: I say nothing"),
    ("names", "PYTHON train.py", "", "expected 1 to 255 bytes of UTF-8"),
    ("integers", "PYTHON train.py", "", "cannot be averaged"),
    ("", "PYTHON train.py", ", tensors: ['lora_*']", "matches none of the trainer's 2 tensors"),
    ("", "PYTHON train.py", ", levels: ['layers.0.*', 'layers.*']", "in entry 0 and in entry 1"),
    ("", "PYTHON train.py", ", setup: 'echo no such package; exit 7'", "trainer.setup ended with exit status 7"),
])
def test_cannot_begin(lair, tmp_path, mode, command, more, said):
    """A trainer that can never work fails the job with a sentence."""
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode=mode, once="", command=command, more=more)
    told = lair.submit(job)
    wait_until(lambda: said in reasons(lair, told), 15, said)
    lair.skerry("cancel", told)


def test_needs_a_worker_that_allows_it(tmp_path):
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode="", once="", command="PYTHON train.py", more="")
    with running(tmp_path / "swarm") as s:
        s.worker("shy")
        told = s.submit(job)
        said = "no worker here runs trainers; start one with --allow-trainers"
        wait_until(lambda: said in reasons(s, told), 30, said)
        s.worker("bold", "--allow-trainers")
        s.wait_job(told, "done", 20)
        assert ["it runs trainers that come with jobs" in s.skerry("workers", name).stdout for name in ("shy", "bold")] == [False, True]
        assert [w["allows_trainers"] for w in sorted(s.get("/v1/status").json()["workers"], key=lambda w: w["name"])] \
            == [True, False]


def test_the_token_is_out_of_reach(lair, tmp_path):
    """The token is neither in the trainer's environment nor in anything it can read of the worker's process; it has its own session."""
    job = write_program(tmp_path, f"{HERE}/trainers/spy.py", FAULTY, mode="", once="", command="PYTHON train.py", more="")
    told = lair.submit(job)
    wait_until(lambda: "found [] of" in reasons(lair, told) and "in session True" in reasons(lair, told), 15, "the spy")
    lair.skerry("cancel", told)


@pytest.mark.parametrize("mode, more", [
    ("setup", ", setup: echo 'about to fall silent (setup)'; exec sleep 1000"),
    ("mute", ""),
    ("hangs", ""),
])
def test_says_nothing(lair, tmp_path, mode, more):
    """A trainer whose setup does not end, that never says hello, or stops in mid-phase: it is killed when its task is taken back (here by
    a person, else by the coordinator after a minute), and the worker goes on."""
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode=mode, once=1, command="PYTHON train.py", more=more)
    told = lair.submit(job)
    wait_until(lambda: f"about to fall silent ({mode})" in lair.log("one"), 20, "the trainer to fall silent")
    silent = set(children_of(lair.one.pid))
    assert silent
    if mode != "hangs":  # what it does is told, and is no training step
        doing = {"setup": "setting the trainer up", "mute": "starting the trainer"}[mode]
        task = wait_until(lambda: next((t for t in lair.get(f"/v1/tasks?job={told}").json()["items"] if t["activity"] == doing), None), 20, doing)
        assert task["steps_done"] == 0
    assert lair.skerry("cancel", told).returncode == 0
    wait_until(lambda: not silent & set(children_of(lair.one.pid)), 20, "the trainer to be killed")
    if mode != "setup":
        lair.wait_job(lair.submit(job), "done", 20)


def test_files_that_change(lair, tmp_path):
    """A file that is half old and half new is refused."""
    job = write_program(tmp_path, FAULTY_PY, FAULTY, mode="", once="", command="PYTHON train.py", more="")
    large = tmp_path / "program" / "large"
    large.write_bytes(bytes(32 << 20))
    over = threading.Event()

    def write():
        n = 0
        while not over.is_set():
            n += 1
            os.utime(large, ns=(n, n))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        told = lair.skerry("submit", job)
    finally:
        over.set()
        writer.join()
    assert told.returncode == 4
    assert f"{large} changed while it was read: submit again when nothing writes there" in told.stderr
