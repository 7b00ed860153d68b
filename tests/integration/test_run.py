"""`skerry run`: from a job file to results, and the files that it leaves when it is stopped."""
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import time
import xml.etree.ElementTree as ET

import pytest

from common import BIN, HANGS, children_of, make_dataset, read_safetensors, skerry, wait_until, write_job


def png_size(path):
    head = open(path, "rb").read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_leaves_results_and_nothing_else(tmp_path):
    job = write_job(tmp_path, rounds=3, steps=4, replicas=2)
    out = tmp_path / "out"
    (out / "logs" / "oak").mkdir(parents=True)
    for name in ("mine.log", "oak/leaf.jpg", "worker-7.log", "worker-7.log.gz"):
        (out / "logs" / name).write_text("kept, if it is not ours", encoding="utf-8")
    done = skerry("run", job, "--workers", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(out / "logs")) == ["coordinatord.log", "mine.log", "oak", "worker-1.log", "worker-2.log", "worker-7.log.gz"]
    assert (out / "logs" / "oak" / "leaf.jpg").exists()
    assert sorted(os.listdir(out)) == ["logs", "loss.svg", "metrics.jsonl", "model", "report.json",
                                       "samples.png"]
    width, height = png_size(out / "samples.png")
    assert width > 32 and height > 16
    ET.parse(out / "loss.svg")
    records = [json.loads(line) for line in open(out / "metrics.jsonl")]
    rounds = [r for r in records if r["kind"] == "round"]
    assert [r["round"] for r in rounds] == [1, 2, 3]
    assert rounds[-1]["eval_loss"] > 0
    steps = {(r["replica"], r["step"]) for r in records if r["kind"] == "loss"}
    assert len(steps) == 2 * 3 * 4, "every inner step of both replicas has a loss point"
    tensors = read_safetensors(out / "model" / "model.safetensors")
    assert tensors["x_embedder.proj.weight"].shape == (32, 3, 4, 4)
    config = json.load(open(out / "model" / "config.json"))
    assert config["hidden_size"] == 32 and config["classes"] == ["disc", "square"]
    assert "done after round 3/3" in done.stderr
    # What each worker computed with, and how much of it the training used.
    for worker in json.load(open(out / "report.json"))["workers"]:
        (device,) = worker["devices"]
        assert device["name"] == "cpu" and device["trouble"] == "" and 0 <= device["utilization"] <= 100
        assert 0 < device["memory_used"] < device["memory_total"]
        assert 0 < worker["flops"] < worker["peak_flops"], "a tiny model is no match for large products"
        assert worker["mfu"] == pytest.approx(worker["flops"] / worker["peak_flops"])


def test_json_output_is_json_only(tmp_path):
    job = write_job(tmp_path, rounds=1, steps=2)
    done = skerry("run", job, "--workers", "1", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert states[-1]["state"] == "done"
    assert states[-1]["bytes"]["per_param_up"] < 4


@pytest.mark.parametrize("recipe, strategies, words", [
    ("diloco", "full", "mixture of experts"),
    ("ddm, experts: 2", "full,most", "'most'"),
])
def test_strategies_are_checked_before_anything_is_trained(tmp_path, recipe, strategies, words):
    job = write_job(tmp_path)
    text = open(job, encoding="utf-8").read()
    changed = re.sub(r"recipe: {[^}]*}", f"recipe: {{name: {recipe}}}", text)
    assert changed != text
    with open(job, "w", encoding="utf-8") as f:
        f.write(changed)
    done = skerry("run", job, "--strategies", strategies, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and not os.path.exists(tmp_path / "out")


SLOW_TO_START = """#!/bin/sh
case "$*" in *worker-2*)
  while [ $((i += 1)) -lt 100 ] && ! grep -q "done task" {log}; do sleep 0.02; done
  grep -c "done task" {log} >{began};;
esac
exec {bin}/workerd "$@"
"""


def test_a_job_begins_when_all_workers_are_here(tmp_path):
    """A single worker would train the replicas of both, with another result."""
    os.mkdir(tmp_path / "bin")
    for name in ("skerry", "coordinatord"):
        shutil.copy(f"{BIN}/{name}", tmp_path / "bin")
    out, began, workerd = tmp_path / "out", tmp_path / "began", tmp_path / "bin" / "workerd"
    workerd.write_text(SLOW_TO_START.format(log=out / "logs" / "worker-1.log", began=began, bin=BIN))
    workerd.chmod(0o755)
    done = subprocess.run([tmp_path / "bin" / "skerry", "run", write_job(tmp_path), "--workers", "2", "--out", out], capture_output=True,
                          text=True, timeout=HANGS, check=False)
    assert done.returncode == 0, done.stderr
    assert began.read_text() == "0\n", "tasks that the first had done when the second began to start"


def start_long_run(tmp_path, **keys):
    job = write_job(tmp_path, rounds=100000, steps=20, **keys)
    run = subprocess.Popen([f"{BIN}/skerry", "run", str(job), "--workers", "2", "--out", str(tmp_path / "out")],
                           stderr=open(tmp_path / "err", "w"), stdout=subprocess.DEVNULL,
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # else it stays ignored under nohup
    wait_until(lambda: re.search(r"round [1-9]", open(tmp_path / "err").read()) or run.poll() is not None, 60,
               "the first round")
    assert run.poll() is None, open(tmp_path / "err").read()
    kids = children_of(run.pid)
    assert len(kids) == 3
    return run, kids


def test_the_newest_samples_are_there_while_it_trains(tmp_path):
    run, _ = start_long_run(tmp_path, sample_every=1)
    grid = tmp_path / "out" / "samples.png"
    wait_until(lambda: grid.exists() or run.poll() is not None, 60, "the first grid")
    first = grid.read_bytes()
    wait_until(lambda: grid.read_bytes() != first or run.poll() is not None, 60, "another grid in its place")
    assert run.poll() is None, open(tmp_path / "err").read()
    assert png_size(grid)[0] >= 32
    run.send_signal(signal.SIGINT)
    assert run.wait(HANGS) == 130


def gone(pids):
    def dead(pid):
        try:
            return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True
    return all(dead(pid) for pid in pids)


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(tmp_path, signo):
    run, kids = start_long_run(tmp_path)
    second = skerry("run", tmp_path / "job.yaml", "--out", tmp_path / "out")
    assert second.returncode == 1 and "another `skerry run` is at work in" in second.stderr, second.stderr
    assert (tmp_path / "out" / ".swarm").exists() and run.poll() is None, "the first one goes on"
    run.send_signal(signo)
    assert run.wait(HANGS) == 130
    assert gone(kids)
    assert not (tmp_path / "out" / ".swarm").exists()
    assert "interrupted" in open(tmp_path / "err").read()
    saved_unfinished(tmp_path / "out")


def saved_unfinished(out):
    """The newest model and the curves, apart from what a finished run leaves."""
    assert json.load(open(out / "unfinished" / "model" / "config.json"))["round"] >= 1
    assert read_safetensors(out / "unfinished" / "model" / "model.safetensors")
    assert {"metrics.jsonl", "loss.svg", "report.json"} <= set(os.listdir(out / "unfinished"))
    assert not (out / "model").exists()


def test_a_worker_that_ends_does_not_cost_the_training(tmp_path):
    run, kids = start_long_run(tmp_path)
    worker = next(pid for pid in kids if open(f"/proc/{pid}/comm").read().startswith("workerd"))
    os.kill(worker, signal.SIGTERM)
    assert run.wait(HANGS) == 1
    said = open(tmp_path / "err").read()
    assert "ended by itself" in said and f"skerry: what was trained is in {tmp_path}/out/unfinished\n" in said, said
    saved_unfinished(tmp_path / "out")
    assert not (tmp_path / "out" / ".swarm").exists()


def test_what_cannot_be_saved_is_kept(tmp_path):
    """A finished training is there until its results are."""
    job, out = write_job(tmp_path, rounds=6, steps=20), tmp_path / "a user's out"
    run = subprocess.Popen([f"{BIN}/skerry", "run", job, "--workers", "1", "--out", out], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (out / "logs" / "worker-1.log").exists(), 60, "it to have begun")
    (out / "model").touch()
    said = run.communicate(timeout=HANGS)[1]
    assert run.returncode == 1 and "done after round 6/6" in said and f"{out}/model is a file" in said, said
    assert os.listdir(out / ".swarm") == ["coordinator"]
    (out / "model").unlink()

    def saves(words):
        serve, export = re.findall("`([^`]*)`", words)[-2:]
        coordinator = subprocess.Popen(shlex.split(serve), stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: "user.token" in coordinator.stdout.readline(), 20, "the coordinator")
            done = subprocess.run(shlex.split(export.replace("MODEL", str(tmp_path / "model"))), capture_output=True, text=True, timeout=HANGS, check=False)
            assert done.returncode == 0, done.stderr
        finally:
            coordinator.terminate()
            coordinator.wait()
        assert json.load(open(tmp_path / "model" / "config.json"))["round"] == 6
        shutil.rmtree(tmp_path / "model")

    saves(said)
    again = skerry("run", job, "--workers", "1", "--out", out)
    assert again.returncode == 0 and not (out / ".swarm").exists(), again.stderr
    saves(again.stderr)


def test_results_of_an_earlier_run_are_named(tmp_path):
    """A run that is stopped leaves an older model beside new logs and samples."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "sample.txt").write_text("of a language model")
    (out / "samples-expert-3.png").write_text("of a mixture")
    for name in ("model-3", "model-router", "model-of-mine"):
        (out / name).mkdir()
    first = skerry("run", write_job(tmp_path, rounds=1, steps=1), "--workers", "1", "--out", out)
    assert first.returncode == 0 and f"samples   {out}/samples.png" in first.stdout and "sample.txt" not in first.stdout
    assert first.stderr.splitlines()[-1] == f"skerry: still of an earlier run: model-3, model-router, sample.txt, samples-expert-3.png in {out}", first.stderr
    (out / "sample.txt").unlink()
    model, grid = (out / "model" / "model.safetensors").read_bytes(), (out / "samples.png").stat().st_mtime_ns
    run, _ = start_long_run(tmp_path, sample_every=1)
    wait_until(lambda: (out / "samples.png").stat().st_mtime_ns != grid or run.poll() is not None, 60, "a new grid")
    run.send_signal(signal.SIGINT)
    assert run.wait(HANGS) == 130
    assert open(tmp_path / "err").read().splitlines()[-1] == f"skerry: still of an earlier run: loss.svg, metrics.jsonl, model, model-3, model-router, report.json, samples-expert-3.png in {out}"
    assert (out / "model" / "model.safetensors").read_bytes() == model, "which nobody asked to remove"


def test_its_own_death_takes_the_swarm_along(tmp_path):
    run, kids = start_long_run(tmp_path)
    run.kill()
    run.wait()
    wait_until(lambda: gone(kids), 10, "the children to die with their parent")
    run, _ = start_long_run(tmp_path)
    assert f"did not save is in {tmp_path}/out/.swarm-unsaved now; to save it" in open(tmp_path / "err").read()
    assert (tmp_path / "out" / ".swarm-unsaved" / "coordinator").exists()
    run.send_signal(signal.SIGINT)
    assert run.wait(HANGS) == 130
    assert f"did not save is in {tmp_path}/out/.swarm-unsaved until you remove it\n" in open(tmp_path / "err").read()


def test_a_killed_worker_is_replaced_and_the_job_ends(tmp_path):
    job = write_job(tmp_path, rounds=6, replicas=2)
    # Phases bounded by time: however fast the machine, the drill comes in the middle of the job.
    text = open(job, encoding="utf-8").read()
    assert "steps: 4, lr: 0.7" in text
    with open(job, "w", encoding="utf-8") as f:
        f.write(text.replace("steps: 4, lr: 0.7", "seconds: 1, lr: 0.7"))
    done = skerry("run", job, "--workers", "2", "--out", tmp_path / "out", "--drill", "2")
    assert done.returncode == 0, done.stderr
    assert "SIGKILL for worker-1" in done.stderr
    assert "worker-3 takes its place" in done.stderr
    assert "\033" not in done.stderr, "what redraws a line is for terminals"
    rounds = [json.loads(line) for line in open(tmp_path / "out" / "metrics.jsonl")]
    assert [r["round"] for r in rounds if r["kind"] == "round"] == [1, 2, 3, 4, 5, 6]


def test_the_same_seed_gives_the_same_model(tmp_path):
    models = []
    for name in ("a", "b"):
        os.makedirs(tmp_path / name)
        job = write_job(tmp_path / name, rounds=2, steps=3, replicas=1)
        done = skerry("run", job, "--workers", "1", "--threads", "1" if name == "a" else "2", "--out",
                      tmp_path / name / "out")
        assert done.returncode == 0, done.stderr
        models.append(open(tmp_path / name / "out" / "model" / "model.safetensors", "rb").read())
    assert models[0] == models[1], "one worker, one seed: equal bits, whatever the threads"


def test_a_job_too_large_for_this_machine_ends(tmp_path):
    job = write_job(tmp_path, dim=64, depth=256, batch=64)
    text = open(job, encoding="utf-8").read()
    for was, now in (("image_size: 16", "image_size: 512"), ("patch: 4", "patch: 8"), ("batch: 64", "batch: 64, accumulate: 1")):
        assert was in text
        text = text.replace(was, now)
    open(job, "w", encoding="utf-8").write(text)
    done = skerry("run", job, "--workers", "2", "--out", tmp_path / "out", "--threads", "1")
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("skerry: the job cannot begin: no worker here has the memory: "), done.stderr
    assert "TiB" in last or "GiB" in last
    assert os.listdir(tmp_path / "out") == ["logs"]


@pytest.mark.parametrize("doing, said", [
    ("trainer", r"INIT task 1 failed: the trainer ended with exit status 127"),
    ("diverging", r"TRAIN task \d failed: step \d+ diverged: loss .*; lower train.lr"),
])
def test_what_fails_again_and_again_ends_the_run(tmp_path, doing, said):
    """Nobody else can come here, and who waits at the terminal can mend it."""
    job = write_job(tmp_path, rounds=2, steps=12, replicas=1)
    text = open(job, encoding="utf-8").read()
    if doing == "trainer":
        (tmp_path / "program").mkdir()
        (tmp_path / "program" / "train.py").write_text("", encoding="utf-8")
        text = ("name: own\ndata: {kind: none}\nmodel: {type: external}\ntrain: {batch: 1}\nrecipe: {replicas: 1}\n"
                "trainer: {command: ./not-there, files: program}\nouter: {rounds: 1, steps: 1}\n")
    else:
        text = re.sub(r"train: {(.*?)lr: [^,}]*", r"train: {\1lr: 10", text)
        assert "lr: 10" in text
    open(job, "w", encoding="utf-8").write(text)
    done = skerry("run", job, "--workers", "2", "--out", tmp_path / "out", timeout=HANGS)
    assert done.returncode == 5, done.stderr
    assert re.search(said, done.stderr), done.stderr
