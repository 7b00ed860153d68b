"""A worker with two devices: the coordinator sees one worker, and the training differs only in the order of sums."""
import json
import os
import re
import subprocess

import numpy as np
from common import HANGS, make_dataset, read_safetensors, wait_until, write_job
from swarm import BIN, swarm  # noqa: F401  (fixture)

JOB = dict(rounds=2, steps=6, replicas=1, lr=1, momentum=0, ema=0, up="f32", down="f32", holdout=0, images=48)


def train(swarm, tmp_path, name, more=""):
    path = write_job(tmp_path / "job", data=False, **JOB)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "train: {parallel: data, " + more, 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    job = swarm.submit(path)
    done = swarm.wait_job(job, "done")
    assert [m["version"] for m in done["modules"]] == [JOB["rounds"]]
    out = tmp_path / name
    exported = swarm.skerry("export", job, "--out", out, "--raw")
    assert exported.returncode == 0, exported.stderr
    return read_safetensors(out / "model.safetensors")


def test_an_island_trains_as_one_device(swarm, tmp_path):
    make_dataset(os.path.join(tmp_path, "job", "data"), images=JOB["images"])
    swarm.worker("plain")
    plain = train(swarm, tmp_path, "plain")
    swarm.kill("plain")
    swarm.worker("isle", device="cpu,cpu", threads=2)
    isle = train(swarm, tmp_path, "isle")
    again = train(swarm, tmp_path, "again")
    assert "state shared out" not in swarm.log("isle")
    shared = train(swarm, tmp_path, "shared", "shard: optimizer, ")
    assert "over 2 devices, the optimiser's state shared out" in swarm.log("isle")

    assert plain.keys() == isle.keys()
    moved = False
    for name, values in plain.items():
        assert np.allclose(values, isle[name], rtol=0, atol=2e-4), name
        assert np.array_equal(isle[name], again[name]), f"{name}: another run has other bits"
        assert np.array_equal(isle[name], shared[name]), f"{name}: shared out it has other bits"
        moved = moved or not np.array_equal(values, isle[name])
    assert moved, "sums over two devices have an order of their own"


JOBS = {"rounds": {}, "fragments": {"outer": "fragments: 2, delay: 2"}, "estimates": {"model": "self_condition: 0.5"}}


def test_a_pipeline_has_the_bits_of_one_device(swarm, tmp_path):
    """Two stages on two devices against one device, with the same micro-batches; in fragments too."""
    make_dataset(os.path.join(tmp_path, "job", "data"), images=JOB["images"])

    def job(**more):
        path = write_job(tmp_path / "job", data=False, **JOB)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for section, keys in more.items():
            text = text.replace(section + ": {", f"{section}: {{{keys}, ", 1)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    found = {}
    for device in ("cpu", "cpu,cpu"):
        swarm.worker(device, device=device, threads=2)
        for name, more in JOBS.items():
            order = {"fragments": "1f1b"}.get(name, "split")
            done = swarm.submit(job(train=f"parallel: pipeline, accumulate: 4, pipeline: {order}", **more))
            swarm.wait_job(done, "done")
            out = tmp_path / f"{device}-{name}"
            exported = swarm.skerry("export", done, "--out", out, "--raw")
            assert exported.returncode == 0, exported.stderr
            found[device, name] = read_safetensors(out / "model.safetensors")
        swarm.kill(device)
    for name in JOBS:
        one, two = found["cpu", name], found["cpu,cpu", name]
        assert one.keys() == two.keys()
        for tensor, values in one.items():
            assert np.array_equal(values, two[tensor]), (name, tensor)
    for order in ("split", "1f1b"):
        assert f"over 1 pipeline of 2 stages ({order}) in 4 micro-batches" in swarm.log("cpu,cpu")
    none = swarm.skerry("trace", "1")
    assert none.returncode != 0 and "job 1 has no trace: none of its phases on a worker of several devices" in none.stderr
    trace, picture = tmp_path / "trace.json", tmp_path / "trace.svg"
    drawn = swarm.skerry("trace", "--out", trace, "--svg", picture)
    assert drawn.returncode == 0, drawn.stderr
    assert "<title>F 3: " in picture.read_text() and "cpu, copy 0, stage 1</text>" in picture.read_text()
    with open(trace, encoding="utf-8") as f:
        bars = [(e["tid"], e["name"]) for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    assert {(0, "F 3"), (1, "B 0"), (0, "SEND states 2"), (1, "STEP")} <= set(bars)
    assert "the job asks for a pipeline, but this worker has one device" in swarm.log("cpu")


def test_two_chains_have_the_bits_of_one_device(swarm, tmp_path):
    """Each chain in two stages on two devices (joined, bidirectional, with separate weight gradients), and one chain per device, against
    one device with the same micro-batches; the base reads its estimates."""
    path = write_job(tmp_path / "job", **JOB)
    with open(path, encoding="utf-8") as f:
        plain = f.read()
    found = {}
    for device in ("cpu", "cpu,cpu"):
        swarm.worker(device, device=device, threads=2)
        parallel = "pipeline" if "," in device else "auto"
        for order in ("1f1b", "split", "divided", "bidirectional") if "," in device else ("bidirectional",):
            with open(path, "w", encoding="utf-8") as f:
                f.write(plain.replace("model: {", "model: {self_condition: 0.5, ", 1)
                        .replace("train: {", "upscaler: {low_side: 8, depth: 3}\n"
                                      f"train: {{parallel: {parallel}, accumulate: 4, pipeline: {order}, ", 1))
            done = swarm.submit(path)
            swarm.wait_job(done, "done")
            out = tmp_path / f"{device}-{order}"
            exported = swarm.skerry("export", done, "--out", out, "--raw")
            assert exported.returncode == 0, exported.stderr
            found[device, order] = read_safetensors(out / "model.safetensors")
        swarm.kill(device)
    for (device, order), tensors in found.items():
        assert tensors.keys() == found["cpu", "bidirectional"].keys()
        for name, values in tensors.items():
            assert np.array_equal(values, found["cpu", "bidirectional"][name]), (device, order, name)
    assert "the job asks for a pipeline, but this worker has one device" in swarm.log("cpu"), "bidirectional asks"
    for order in ("joined", "split", "divided", "bidirectional"):
        assert f"over 1 pipeline of 2 stages ({order}) in 4 micro-batches" in swarm.log("cpu,cpu")
        assert re.search(f"predicted: {order} of 2 stages in 4 micro-batches .* s a step", swarm.log("cpu,cpu"))
    trace, picture = tmp_path / "trace.json", tmp_path / "trace.svg"
    drawn = swarm.skerry("trace", "--out", trace, "--svg", picture)
    assert drawn.returncode == 0, drawn.stderr
    assert "<title>F 3 upscaler: " in picture.read_text()
    with open(trace, encoding="utf-8") as f:
        bars = [(e["tid"], e["name"]) for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    assert {(0, "F 3 base"), (1, "B 0 base"), (0, "B 0 upscaler"), (1, "SEND states 2 upscaler")} <= set(bars)


def test_stages_that_do_not_divide(swarm, tmp_path):
    """Two stages on three devices: one stage has two devices."""
    path = write_job(tmp_path / "job", **JOB)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "train: {stages: 2, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    swarm.worker("three", "--throttle", "600", device="cpu,cpu,cpu", threads=3)
    job = swarm.submit(path)
    told = "training in 2 stages on [12] \\+ [12] devices( \\(split\\))?, [0-9]+ micro-batches, idle [0-9]+ %: .* s a step, .* predicted"
    wait_until(lambda: re.search(told, swarm.get("/v1/workers").text), 30, "how the devices share a step")
    plan = swarm.get("/v1/workers").json()["items"][0]["plan"]
    assert (plan["devices"], plan["stages"], plan["widest_stage"]) == (3, 2, 2)
    assert 'skerry_worker_pipeline_widest_stage{worker="1",name="three"} 2' in swarm.get("/metrics").text
    swarm.wait_job(job, "done")
    trace = tmp_path / "trace.json"
    assert swarm.skerry("trace", "--out", trace).returncode == 0
    assert re.search(r"copy 0, stage [01], device 1 of 2", trace.read_text())

    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("stages: 2", "stages: 3"))
    refused = swarm.skerry("check", path)
    assert refused.returncode != 0
    assert "train.stages is 3, but the model has 2 blocks" in refused.stderr


def test_a_plan_of_what_is_here(tmp_path):
    """--plan measures the given devices, or says why it cannot."""
    path = write_job(tmp_path / "job", depth=3, **JOB)

    def plan(*args, job=path):
        return subprocess.run([os.path.join(BIN, "workerd"), "--plan", job, *args], capture_output=True, text=True, timeout=HANGS)

    told = plan("--device", "cpu,cpu", "--threads", "2")
    assert told.returncode == 0, told.stderr
    assert "samples a step on 2 devices" in told.stdout
    assert re.search(r"^1f1b +2 +1 ", told.stdout, re.M), told.stdout
    assert re.search(r"^  cpu: .* of which .* model and optimiser, .* slots, .* beside them$", told.stdout, re.M), told.stdout
    one = plan("--device", "cpu")
    assert one.returncode == 1 and "--device cpu is one device, and there is nothing to plan" in one.stderr
    own = plan("--device", "cpu,cpu", job=os.path.join(os.path.dirname(__file__), "..", "..", "examples", "trainer-c.yaml"))
    assert own.returncode == 1 and "what its own trainer does with a step is not known here" in own.stderr


def test_stages_that_no_worker_has(swarm, tmp_path):
    """A worker with fewer devices than stages says so; a worker with enough takes the job."""
    path = write_job(tmp_path / "job", depth=3, **JOB)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "train: {stages: 3, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    swarm.worker("two", device="cpu,cpu", threads=2)
    job = swarm.submit(path)
    wait_until(lambda: "train.stages is 3, but this worker has 2 devices" in swarm.log("two"), 20, "the worker's refusal")
    swarm.worker("three", device="cpu,cpu,cpu", threads=3)
    swarm.wait_job(job, "done")
    assert "over 1 pipeline of 3 stages" in swarm.log("three")


def test_an_island_beside_a_plain_worker(swarm, tmp_path):
    swarm.worker("plain")
    swarm.worker("isle", device="cpu,cpu", threads=2)
    swarm.joined("plain", "isle")
    job = swarm.submit(replicas=2, rounds=3, steps=6)
    done = swarm.wait_job(job, "done")
    assert [m["version"] for m in done["modules"]] == [3]
    workers = {w["name"]: w for w in swarm.get("/v1/workers").json()["items"]}
    assert workers["isle"]["device"].startswith("cpu,cpu: 2 x CPU, 1 thread"), workers["isle"]["device"]
    assert workers["plain"]["device"].startswith("cpu: CPU, 1 thread"), workers["plain"]["device"]
    assert re.search("predicted: (1f1b|split) of 2 stages in [0-9]+ micro-batches .* s a step, data parallelism", swarm.log("isle"))
    assert re.search("a step took .* times what was predicted", swarm.log("isle"))
    for name in ("isle", "plain"):
        assert "first step after" in swarm.log(name), f"{name} has not trained"

    # Killed between two jobs, it comes back and goes on.
    swarm.kill("plain")
    swarm.kill("isle")
    swarm.worker("isle", device="cpu,cpu", threads=2)
    again = swarm.submit(replicas=2, rounds=1, steps=3)
    swarm.wait_job(again, "done")
