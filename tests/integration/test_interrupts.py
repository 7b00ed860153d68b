"""Ctrl-C, and pipes that close: work that a command started for its user ends with the command."""
import json
import os
import re
import select
import signal
import subprocess

import pytest

from common import BIN, HANGS, children_of, make_dataset, wait_until, write_job
from swarm import swarm  # noqa: F401  (fixture)


def on_a_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # else it stays ignored where these tests run under nohup


def asks(swarm, *args, stdout=subprocess.DEVNULL):
    return subprocess.Popen([f"{BIN}/skerry", *map(str, args), "--server", swarm.token], stdout=stdout,
                            stderr=subprocess.PIPE, text=True, preexec_fn=on_a_terminal)


def catches(pid, signo):
    """True once the process has a handler for the signal."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"^SigCgt:\s*(\w+)", f.read(), re.M)[1], 16) >> signo - 1 & 1


def connects(pid):
    return any(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in os.listdir(f"/proc/{pid}/fd") if os.path.lexists(f"/proc/{pid}/fd/{fd}"))


def drawing(swarm, job, state):
    """The task of the newest drawing, once it is in this state."""
    def there():
        tasks = swarm.get(f"/v1/tasks?job={job}&state={state}").json()["items"]
        return next((t for t in tasks if t["kind"] == "sample"), None)
    return wait_until(there, 30, f"a sample task to be {state}")


def ended(process, words):
    _, told = process.communicate(timeout=HANGS)
    lines = [line for line in told.splitlines() if line.startswith("skerry: ")]
    assert process.returncode == 130 and len(lines) == 1 and words in lines[0], (process.returncode, told)


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_drawing_ends_with_its_asker(swarm, signo):
    swarm.worker("a")
    job = swarm.submit(rounds=1, steps=2, replicas=1)
    swarm.wait_job(job, "done")
    process = asks(swarm, "sample", job, "--count", 256, "--steps", 1000, "--out", swarm.folder + "/x.png")
    task = drawing(swarm, job, "leased")["id"]
    wait_until(lambda: swarm.get(f"/v1/tasks/{task}").json()["steps_done"], 30, "steps: by then the command has been told which task it is")
    process.send_signal(signo)
    ended(process, f"interrupted; task {task} is cancelled")
    assert swarm.get(f"/v1/tasks/{task}").json()["state"] == "cancelled"
    wait_until(lambda: swarm.get("/v1/workers").json()["items"][0]["state"] == "idle", 30, "the worker to let go of it")
    swarm.kill("a", signal.SIGTERM)
    process = asks(swarm, "sample", job, "--out", swarm.folder + "/x.png")
    task = drawing(swarm, job, "pending")["id"]
    assert select.select([process.stderr], [], [], HANGS)[0], "said why nobody draws"
    assert f"task {task}: no worker is here; start one with workerd --join" in process.stderr.readline()
    assert swarm.skerry("cancel", "--task", task).returncode == 0
    assert process.wait(HANGS) == 1 and f"task {task}" not in swarm.skerry("tasks").stdout


@pytest.mark.parametrize("args", [("check", "job.yaml"), ("new", "other", "--images", "data")], ids=lambda args: args[0])
def test_measuring_is_broken_off(tmp_path, args):
    """A signal to the command alone also ends the program that measures, which does not get the signal."""
    write_job(tmp_path, dim=512, depth=12, batch=64)
    process = subprocess.Popen([f"{BIN}/skerry", *args], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    child = wait_until(lambda: open(children, encoding="ascii").read().split(), 30, "it to measure")[0]
    process.send_signal(signal.SIGINT)
    ended(process, "interrupted")
    assert not os.path.exists(f"/proc/{child}") and not (tmp_path / "other.yaml").exists()


def test_a_killed_new_leaves_no_job_file(tmp_path):
    make_dataset(tmp_path / "data", classes=1, images=96)
    process = subprocess.Popen([f"{BIN}/skerry", "new", "other", "--images", "data"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_until(lambda: children_of(process.pid), 30, "it to measure")
    process.kill()
    process.wait()
    assert os.listdir(tmp_path) == ["data"]


def test_a_reader_that_goes_away(swarm):
    """Text goes through a pipe whose reader leaves early, as in `skerry sample | head -c 1`."""
    docs, path = swarm.folder + "/train.jsonl", swarm.folder + "/job.yaml"
    line = json.dumps({"text": "so it goes, on and on " * 20}) + "\n"  # long: an end of a text is rare
    open(docs, "w", encoding="utf-8").write(line * 80)
    open(path, "w", encoding="utf-8").write(
        f"name: t\ndata: {{path: {docs}, shard_samples: 32, holdout: 0}}\ntrain: {{batch: 4, precision: f32}}\n"
        "model: {type: llama, dim: 256, depth: 8, heads: 4, context: 64}\nouter: {rounds: 1, steps: 2}\nsample: {tokens: 4}\n")
    swarm.worker("a")
    job = swarm.submit(path)
    swarm.wait_job(job, "done")
    process = asks(swarm, "sample", job, "--tokens", 4096, "--temperature", 0, stdout=subprocess.PIPE)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(HANGS) == 130
    assert "is cancelled" in process.stderr.read()
    assert drawing(swarm, job, "cancelled")
    refused = swarm.skerry("sample", job, "--tokens", 4097)
    assert refused.returncode == 2 and "4096" in refused.stderr


def test_watching_is_not_holding(swarm):
    """A job without workers waits; the end of `skerry watch` does not change it."""
    job = swarm.submit(rounds=1, steps=2)
    for command in (["watch", job], ["watch"]):
        process = asks(swarm, *command, "--json", stdout=subprocess.PIPE)
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        ended(process, f"job {job} goes on, `skerry cancel {job}` would stop it")
    assert swarm.job(job)["state"] == "initialising"
    unknown = swarm.skerry("watch", job + 1)
    assert unknown.returncode == 1 and f"job {job + 1} does not exist" in unknown.stderr, unknown.stderr
    swarm.kill("coordinatord", signal.SIGSTOP)  # it takes connections, and says nothing
    process = asks(swarm, "export", job, "--out", swarm.folder + "/m")
    wait_until(lambda: catches(process.pid, signal.SIGINT) and connects(process.pid), 20, "it to ask")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    ended(process, "interrupted")


def test_watching_says_once_that_the_coordinator_is_away(swarm):
    """Into a file or a pipe, where no line is redrawn: whether it is gone, or there and says nothing."""
    def says(words, pipe="stderr"):
        said = getattr(process, pipe)
        assert select.select([said], [], [], HANGS)[0], words
        line = said.readline()
        assert line.startswith(words), line
        return line

    job = swarm.submit(rounds=1, steps=2)
    process = asks(swarm, "watch", job, stdout=subprocess.PIPE)
    says("initialising", "stdout")
    swarm.kill("coordinatord")
    away = says("no answer from the coordinator since ")
    assert re.search(r"since \d\d:\d\d:\d\d, waiting for it for a minute: .*127.0.0.1", away), away
    swarm.coordinator()
    says("the coordinator is back after ")
    swarm.kill("coordinatord", signal.SIGSTOP)
    assert "it is there and says nothing" in says("no answer from the coordinator since ")
    swarm.kill("coordinatord", signal.SIGCONT)
    says("the coordinator is back after ")
    process.send_signal(signal.SIGINT)
    ended(process, f"job {job} goes on")
    process = asks(swarm, "watch", job, stdout=subprocess.PIPE)
    says("initialising", "stdout")
    swarm.kill("coordinatord")
    says("no answer from the coordinator since ")
    process.send_signal(signal.SIGINT)
    ended(process, f"it is not known whether job {job} goes on")
    process = asks(swarm, "watch", job, stdout=subprocess.PIPE)  # before it is back
    assert "127.0.0.1" in says("no answer from the coordinator since ")
    swarm.coordinator()
    says("the coordinator is back after ")
    says("initialising", "stdout")
    process.send_signal(signal.SIGINT)
    ended(process, f"job {job} goes on")


def test_a_worker_that_has_not_begun_ends_at_once(tmp_path):
    """The first process of a container ignores all signals that it does not catch."""
    worker = subprocess.Popen([f"{BIN}/workerd", "--join", "-", "--device", "cpu", "--work-dir", str(tmp_path)], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: catches(worker.pid, signal.SIGTERM), 10, "it to wait for its token")
        worker.terminate()
        assert worker.wait(HANGS) == 0
    finally:
        worker.kill()
