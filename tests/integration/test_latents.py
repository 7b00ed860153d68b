"""Jobs whose model reads the latents of a frozen VAE, and captions, through the whole system: the ways of
running the VAE give the same bits, every recipe runs, job files that do not fit are refused."""
import json
import os
import random
import re
import shutil
import subprocess
import sys

import numpy as np
from PIL import Image
import pytest

from common import dataset, read_safetensors, skerry, wait_until
from swarm import running, swarm  # noqa: F401  (fixture)
import frozen_models

FAULTY = os.path.abspath(os.path.join(os.environ.get("SKERRY_BUILD", "build"), "clang/asan/bin"))
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/latents_data.py")
WORDS = ["a", "red", "blue", "disc", "square", "the"]
JOB = """name: latents
seed: 5
data: {{path: data, image_size: 32, holdout: 0.1{data}}}
encoders: {{{encoders}}}
model: {{patch: 4, dim: 32, depth: 2, heads: 2{model}}}
train: {{batch: 8, lr: 1e-3, precision: {precision}{train}}}
recipe: {{name: {recipe}}}
outer: {{rounds: {rounds}, steps: {steps}{outer}}}
sample: {{count: 4, steps: 3, columns: 2{sample}}}
eval: {{every: 1, samples: 8}}
{more}"""
PROMPTS = ", prompts: [a red disc, the square]"


def captioned(folder, images=96):
    """Makes pictures with one or two captions, and one picture without."""
    dataset.make(os.path.join(folder, "data"), classes=2, images=images, size=32)
    for name in sorted(os.listdir(os.path.join(folder, "data"))):
        for file in sorted(os.listdir(os.path.join(folder, "data", name))):
            n = int(file[:5])
            colour = random.Random(n).choice(["red", "blue"])
            text = f"a {colour} {name}\n" + (f"the {name}\n" if n % 2 else "")
            if n:
                with open(os.path.join(folder, "data", name, f"{n:05d}.txt"), "w", encoding="utf-8") as f:
                    f.write(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("latents"))
    frozen_models.pipeline(os.path.join(folder, "pipe"), WORDS)
    captioned(folder)
    return folder


def write(place, name, **keys):
    values = {"data": ", shard_samples: 32", "encoders": "path: pipe", "precision": "f32", "recipe": "diloco, replicas: 2", "outer": "",
              "sample": PROMPTS, "more": "", "rounds": 2, "train": "", "model": "", "steps": 4, **keys}
    path = os.path.join(place, name + ".yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(JOB.format(**values))
    return path


def run(place, name, workers=2, device="cpu", **keys):
    out = os.path.join(place, "out-" + name)
    done = skerry("run", write(place, name, **keys), "--workers", workers, "--device", device, "--out", out)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(out, "report.json"), encoding="utf-8") as f:
        return json.load(f), out


def only_weights(folder):
    found = [f for f in os.listdir(folder) if f.endswith(".safetensors")]
    assert len(found) == 1
    return read_safetensors(os.path.join(folder, found[0]))


def weights(out):
    return only_weights(os.path.join(out, "model"))


def equal(a, b):
    assert sorted(a) == sorted(b)
    return all(np.array_equal(a[k].view(np.uint8), b[k].view(np.uint8)) for k in a)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_cached_equals_computed(place, precision):
    """Weights and samples have the same bits, also with flips, several captions and dropout."""
    made = {}
    for way in ("fly", "worker", "job"):
        # One worker: a replica that another one goes on with begins its moments again.
        report, out = run(place, f"{way}-{precision}", workers=1, encoders=f"path: pipe, run: {way}", data=", shard_samples: 32, flip: true",
                          precision=precision)
        assert report["job"]["state"] == "done"
        with open(os.path.join(out, "samples.png"), "rb") as f:
            made[way] = weights(out), f.read()
    for way in ("worker", "job"):
        assert equal(made["fly"][0], made[way][0]), way
        assert made["fly"][1] == made[way][1], way


BUCKETS = ', buckets: ["32x32", "48x16", "16x48"]'


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Makes pictures of different shapes: some wide, some high."""
    folder = str(tmp_path_factory.mktemp("unlike"))
    frozen_models.pipeline(os.path.join(folder, "pipe"), WORDS)
    captioned(folder)
    for name in sorted(os.listdir(os.path.join(folder, "data"))):
        for file in sorted(os.listdir(os.path.join(folder, "data", name))):
            path = os.path.join(folder, "data", name, file)
            if file.endswith(".png"):
                n = int(file[:5])
                with Image.open(path) as image:
                    wide = image.resize([(40, 40), (100, 40), (30, 80), (32, 35)][n % 4])
                wide.save(path)
    return folder


def test_buckets_have_the_same_bits(unlike):
    """All ways of running the VAE, on flipped pictures of several shapes."""
    made = {}
    for way in ("fly", "worker", "job"):
        report, out = run(unlike, f"bucket-{way}", workers=1, encoders=f"path: pipe, run: {way}",
                          data=", shard_samples: 32, flip: true" + BUCKETS)
        assert report["job"]["state"] == "done"
        made[way] = weights(out)
    assert equal(made["fly"], made["worker"])
    assert equal(made["fly"], made["job"])
    _, out = run(unlike, "no-bucket", encoders="path: pipe, run: fly", data=", shard_samples: 32, flip: true")
    assert not equal(made["fly"], weights(out))


def test_buckets_of_every_kind(unlike):
    """Buckets with classes on pixels; with experts and their router, on latents and on pixels; with a random crop."""
    _, out = run(unlike, "bucket-pixels", encoders="", sample="", data=", shard_samples: 32, crop: random" + BUCKETS)
    assert "y_embedder.embedding_table.weight" in weights(out)
    more = "router: {dim: 16, depth: 1, heads: 1, patch: 4}\npartition: {dims: 8, fine: 16}\n"
    for name, encoders, sample in (("latents", "path: pipe, run: job", PROMPTS), ("pixels", "", "")):
        report, _ = run(unlike, "bucket-ddm-" + name, recipe="ddm, experts: 2", encoders=encoders, sample=sample,
                        data=", shard_samples: 32" + BUCKETS, more=more)
        assert {"loss full", "loss oracle"} <= {f["name"] for f in report["job"]["figures"]}


def test_buckets_that_do_not_fit_are_refused(unlike):
    for shape, words in (("48x48", ["data.buckets", "more pixels than data.image_size 32"]),
                         ("48by16", ["expected WIDTHxHEIGHT"]), ("30x16", ["multiples of model.patch (4)"]),
                         ("36x16", ["shrinks pictures by 2", "patches of 4: give multiples of 8"])):
        refused(unlike, "bucket-" + shape, words, data=f', buckets: ["{shape}"]')
    refused(unlike, "bucket-twice", ["holds 48x16 twice"], data=', buckets: ["48x16", "48x16"]')


def test_experts_on_latents(place):
    """Clusters and router read latents; captions reach every expert, also on another worker."""
    keys = {"recipe": "ddm, experts: 2", "outer": ", ema: 0.5",
            "more": "router: {dim: 16, depth: 1, heads: 1, patch: 4}\npartition: {dims: 8, fine: 16}\n"}
    report, out = run(place, "ddm", encoders="path: pipe, run: job", sample=PROMPTS + ", strategy: full", **keys)
    assert [sorted(os.listdir(os.path.join(out, "model-" + name))) for name in ("0", "1", "router")] == \
        [[".skerry", "README.md", "config.json", "diffusion_pytorch_model.safetensors"]] * 2 + [[".skerry", "README.md", "config.json", "model.safetensors"]]
    with open(os.path.join(out, "model-router", "config.json"), encoding="utf-8") as f:
        router = json.load(f)
    assert (router["in_channels"], router["image_size"], router["num_classes"]) == (4, 16, 2), router
    assert len(report["job"]["partitions"]) == 2
    names = {f["name"] for f in report["job"]["figures"]}
    assert {"loss full", "loss oracle"} <= names
    assert os.path.exists(os.path.join(out, "samples.png"))


def test_latents_with_classes(place):
    """A VAE without a text encoder: a DiT with labels on latents."""
    report, out = run(place, "classes", encoders="vae: pipe/vae, run: job", sample="")
    assert report["job"]["input"] == {"channels": 4, "side": 16, "caption": 0, "caption_tokens": 0}
    assert "y_embedder.embedding_table.weight" in weights(out)


def test_captions_on_pixels(place):
    report, out = run(place, "pixels", encoders="text: pipe/text_encoder, tokens: 8")
    assert report["job"]["input"] == {"channels": 0, "side": 0, "caption": 32, "caption_tokens": 8}
    assert "transformer_blocks.0.attn2.to_q.weight" in weights(out)


def test_a_caption_that_is_too_long(place, swarm):
    """A person who asks for a picture sees that the caption was not read to its end."""
    swarm.worker("a")
    job = swarm.submit(write(place, "long", encoders="text: pipe/text_encoder, tokens: 8"))
    swarm.wait_job(job, "done")
    ask = {"prompt": "a red disc\n" + "a red disc the blue square " * 2, "count": 256, "steps": 1000}
    task = swarm.post(f"/v1/jobs/{job}/sample", ask).json()["task"]
    said = "drawing 256 samples; captions are cut by 6 tokens, for 8 are read of each"
    wait_until(lambda: swarm.get(f"/v1/tasks/{task}").json()["activity"] == said, 30, "it to be said")
    assert swarm.skerry("cancel", "--task", task).returncode == 0


def test_captions_with_two_chains(place):
    """Both chains of a cascade read the caption; the next job, in a pipeline, starts with an export, to the bit."""
    keys = {"encoders": "text: pipe/text_encoder, tokens: 8", "model": ", self_condition: 0.5",
            "more": "upscaler: {low_side: 16, patch: 8, depth: 1}\n", "recipe": "diloco, replicas: 1", "rounds": 1}
    report, out = run(place, "chains", workers=1, **keys)
    assert report["job"]["input"] == {"channels": 0, "side": 0, "caption": 32, "caption_tokens": 8}
    with open(os.path.join(out, "model", "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    assert (config["sample_size"], config["in_channels"], config["num_layers"]) == (16, 6, 2)
    second = config["upscaler"]
    assert (second["sample_size"], second["in_channels"], second["num_layers"], second["out_channels"]) == (32, 6, 1, 3)
    assert second["_skerry"]["noise"] == 0.1 and second["caption_channels"] == 32
    assert os.path.getsize(os.path.join(out, "samples.png")) > 0
    first = weights(out)
    assert first["upscaler.transformer_blocks.0.attn2.to_q.weight"].any()
    file = os.path.join(out, "model", "diffusion_pytorch_model.safetensors")
    frozen_models.write_safetensors(file, {**first, "caption_projection.y_embedding": np.zeros((7, 32), np.float32)})  # as old files have
    more = {**keys, "model": ", self_condition: 0.5, warm_start: out-chains/model", "outer": ", lr: 0, momentum: 0, ema: 0"}
    _, again = run(place, "chains-again", workers=1, device="cpu,cpu",
                   **{**more, "train": ", parallel: pipeline, pipeline: divided, accumulate: 4"})
    assert equal(first, weights(again))
    with open(os.path.join(again, "logs", "worker-1.log"), encoding="utf-8") as f:
        log = f.read()
    assert "over 1 pipeline of 2 stages (divided) in 4 micro-batches" in log
    assert "of the frozen encoders' work in bubbles" in log  # of both chains' captions, once
    other = {**more, "more": "upscaler: {low_side: 16, patch: 8, depth: 2}\n"}
    refused(place, "chains-other", ["upscaler", "model.depth"], **other)
    refused(place, "chains-none", ["is of a model with an upscaler"], **{**more, "more": ""})
    refused(place, "chains-vae", ["upscaler.low_side is given with encoders.vae"], **{**keys, "encoders": "path: pipe"})
    refused(place, "chains-dim", ["upscaler.dim is 24"], **{**keys, "more": "upscaler: {low_side: 16, patch: 8, dim: 24}\n"})


def test_experts_with_captions_of_two_chains(place):
    """Captions reach both chains of every expert, in fragments; the mixture is measured and drawn."""
    keys = {"encoders": "text: pipe/text_encoder, tokens: 8", "sample": PROMPTS + ", strategy: full", "outer": ", fragments: 2",
            "recipe": "ddm, experts: 2", "more": "upscaler: {low_side: 16, patch: 8}\npartition: {dims: 8, fine: 16}\n"}
    report, out = run(place, "chains-ddm", **keys)
    figures = {f["name"]: f["value"] for f in report["job"]["figures"] if f.get("path") is None}
    assert figures["base's loss"] + figures["upscaler's loss"] == pytest.approx(figures["loss full"], rel=1e-5)
    for path in "01":
        with open(os.path.join(out, "model-" + path, "config.json"), encoding="utf-8") as f:
            assert json.load(f)["upscaler"]["sample_size"] == 32
    assert os.path.getsize(os.path.join(out, "samples.png")) > 0


def test_paths_fragments_and_async(place):
    run(place, "dipaco", recipe="dipaco, levels: [2, 2]", more="partition: {dims: 8, fine: 16}\n")
    run(place, "fragments", outer=", fragments: 2, delay: 1")
    run(place, "async", outer=", async: true")


@pytest.mark.parametrize("encoders, sample", [("path: pipe", PROMPTS), ("vae: pipe/vae", "")])
def test_warm_start(place, encoders, sample):
    """The next job starts with an export, to the bit; with captions or classes."""
    form = encoders[:4]
    _, out = run(place, "first-" + form, encoders=encoders, sample=sample)
    keys = {"encoders": encoders, "sample": sample, "outer": ", lr: 0, momentum: 0, ema: 0"}
    _, again = run(place, "second-" + form, **keys)
    path = write(place, "third-" + form, **keys)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("heads: 2}", f"heads: 2, warm_start: out-first-{form}/model}}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    done = skerry("run", path, "--workers", 1, "--out", os.path.join(place, "out-third-" + form))
    assert done.returncode == 0, done.stderr
    first, third = weights(out), weights(os.path.join(place, "out-third-" + form))
    assert equal(first, third)
    assert not equal(first, weights(again))


def test_drawing_a_prompt(place, tmp_path):
    """The worker with the path draws the prompt, and so do workers together from afar."""
    keys = {"recipe": "ddm, experts: 2",
            "more": "router: {dim: 16, depth: 1, heads: 1, patch: 4}\npartition: {dims: 8, fine: 16}\n"}
    with running(tmp_path) as swarm:
        for name in ("a", "b"):
            swarm.worker(name)
        job = swarm.submit(write(place, "prompt", **keys))
        swarm.wait_job(job, "done")
        grids = []
        for i, flags in enumerate((["-p", "a blue square"], ["-p", "a blue square", "--remote"], ["-p", "the disc"])):
            out = os.path.join(place, f"asked-{i}.png")
            done = swarm.skerry("sample", job, "--out", out, "--strategy", "full", "--count", "5", *flags)
            assert done.returncode == 0, done.stderr
            with open(out, "rb") as f:
                grids.append(f.read())
        assert grids[0] == grids[1]
        assert grids[0] != grids[2]
        for out, flags in (("lines", ["-p", "a blue square\nthe disc"]), ("flags", ["-p", "a blue square", "--prompt=the disc"])):
            done = swarm.skerry("sample", job, "--out", os.path.join(place, out + ".png"), "--count", "2", *flags)
            assert done.returncode == 0, done.stderr
        with open(os.path.join(place, "lines.png"), "rb") as lines, open(os.path.join(place, "flags.png"), "rb") as given:
            assert lines.read() == given.read()
        done = swarm.skerry("sample", job, "--labels", "0")
        assert done.returncode != 0 and "prompt" in done.stderr
        done = swarm.skerry("sample", job, "-p", "\n".join(["a"] * 1025))
        assert done.returncode != 0 and "1025 captions, at most 1024" in done.stderr

        # One student learns from both experts, on the shards that they knew.
        student = swarm.submit(write(place, "student", recipe=f"distill, teacher: {job}"))
        swarm.wait_job(student, "done")
        other = write(place, "other", recipe=f"distill, teacher: {job}", encoders="vae: pipe/vae", sample="")
        done = swarm.skerry("submit", other)
        assert done.returncode != 0 and "encoders" in done.stderr


def test_weights_that_are_there_are_not_fetched(place, tmp_path):
    with running(tmp_path) as swarm:
        swarm.worker("a", "--models", os.path.join(place, "pipe"))
        job = swarm.submit(write(place, "local"))
        swarm.wait_job(job, "done")
        assert "not fetched" in swarm.log("a")
        assert sum("not fetched" in line for line in swarm.log("a").splitlines()) == 8


def test_kept_latents_are_those_of_the_vae(place, tmp_path):
    """A job with other settings of the text encoder, or another bound, finds all latents that the last job kept: none is encoded, and so
    written, again.  One that is damaged is."""
    def written():
        paths = [os.path.join(folder, f) for folder, _, files in os.walk(tmp_path) for f in files if f.endswith(".lat")]
        return {path: os.stat(path).st_mtime_ns for path in paths}

    def train(name, encoders):  # long enough to see every picture
        job = swarm.submit(write(place, f"kept-{name}", encoders=f"path: pipe, run: worker, {encoders}", rounds=3))
        swarm.wait_job(job, "done")
        return written()

    with running(tmp_path) as swarm:
        swarm.worker("a")
        first = train("first", "cache: 64")
        assert first
        assert train("second", "cache: 96, tokens: 8, layer: -2") == first
        largest = max(first, key=os.path.getsize)  # of pictures that are trained on
        with open(largest, "r+b") as f:
            byte = f.read(1)[0]
            f.seek(0)
            f.write(bytes([byte ^ 2]))
        damaged = written()
        third = train("third", "cache: 64")
        assert {path for path in third if third[path] != damaged[path]} == {largest}


def test_auto_keeps_latents(place, tmp_path):
    """Pictures come again too seldom for the job to encode them first, but often enough for a worker to keep what its slow VAE made: from
    the second epoch on it reads them, with the same bits.  Another job finds them all."""
    frozen_models.vae(os.path.join(place, "slow"), channels=(96, 192))
    keys = {"recipe": "diloco, replicas: 1", "rounds": 5, "sample": "", "more": "wire: {up: f32, down: f32}\n"}

    def written():
        paths = [os.path.join(folder, f) for folder, _, files in os.walk(tmp_path) for f in files if f.endswith(".lat")]
        return {path: os.stat(path).st_mtime_ns for path in paths}

    def train(name, run, epoch=lambda job: None):
        job = swarm.submit(write(place, name, encoders=f"vae: slow, run: {run}", **keys))
        epoch(job)
        swarm.wait_job(job, "done")
        out = tmp_path / f"out-{name}"
        exported = swarm.skerry("export", job, "--out", out, "--raw")
        assert exported.returncode == 0, exported.stderr
        return only_weights(out)

    def first_epoch(job):
        swarm.wait_round(job, 3)  # 96 of the 87 pictures that are trained on
        after.update(written())

    after = {}
    with running(tmp_path) as swarm:
        swarm.worker("a")
        each = train("auto-fly", "fly")
        assert not written()
        kept = train("auto", "auto", first_epoch)
        assert "each is seen only 1.8 times" in swarm.log("coordinatord")
        assert "latents are kept: of this phase's pictures 0 % lie on the disk, the others come again 0.84 times" in swarm.log("a")
        assert after and written() == after
        assert equal(each, kept)
        again = train("auto-again", "auto")
        assert "latents are kept: of this phase's pictures 100 % lie on the disk" in swarm.log("a")
        assert written() == after
        assert equal(each, again)


def test_encoders_run_in_bubbles(place, tmp_path):
    """Encoders in a pipeline's bubbles, refilled by measured times, or before each step: the same bits; log and trace show which."""
    keys = {"recipe": "diloco, replicas: 1", "encoders": "path: pipe, run: fly", "data": ", shard_samples: 32, flip: true",
            "outer": ", fragments: 2, delay: 1", "model": ", self_condition: 1", "steps": 25}
    ways = {"one": ("cpu", ""), "filled": ("cpu,cpu", ", stages: 2"), "empty": ("cpu,cpu", ", stages: 2, fill: false")}
    found = {}
    with running(tmp_path) as swarm:
        for name, (device, more) in ways.items():
            swarm.worker(name, device=device, threads=2)
            job = swarm.submit(write(place, "bubbles", **keys, train=", accumulate: 4" + more))
            swarm.wait_job(job, "done")
            swarm.kill(name)
            out = tmp_path / f"out-{name}"
            exported = swarm.skerry("export", job, "--out", out, "--raw")
            assert exported.returncode == 0, exported.stderr
            found[name] = only_weights(out)
            assert ("of the frozen encoders' work in bubbles" in swarm.log(name)) == (name == "filled")
            assert ("which delays the pipeline by" in swarm.log(name)) == (name == "filled")
            if device == "cpu,cpu":
                trace = re.search("when each device did what in a step: (.*)", swarm.log(name)).group(1)
                with open(trace, encoding="utf-8") as f:
                    bars = {e["name"].split()[0] for e in json.load(f)["traceEvents"] if e["ph"] == "X"}
                assert ("FROZEN" in bars) == (name == "filled") and "F" in bars
    assert equal(found["one"], found["filled"])
    assert equal(found["one"], found["empty"])


@pytest.mark.parametrize("devices", [1, 2])
def test_encoders_stay_in_the_hosts_memory(place, tmp_path, devices):
    """A text encoder that a device cannot hold beside the model is streamed, which the log says: the same bits.  Devices share its weights."""
    folder = os.path.join(place, "deep")
    tokens = frozen_models.clip_tokenizer(os.path.join(folder, "tokenizer"), WORDS)
    frozen_models.clip(os.path.join(folder, "text"), tokens, dim=128, layers=48)
    keys = {"recipe": "diloco, replicas: 1", "encoders": "text: deep/text, tokenizer: deep/tokenizer"}
    found = {}
    with running(tmp_path) as swarm:
        for name, memory in (("whole", 0), ("streamed", 56000000), ("none", 44000000)):
            swarm.worker(name, bin=FAULTY, device=",".join(["cpu"] * devices), threads=devices,
                         env={"SKERRY_FAULT_MEMORY": str(devices * memory)} if memory else {})
            job = swarm.submit(write(place, "deep-job", train=", parallel: data", **keys))
            if name == "none":
                wait_until(lambda: "failed: with the frozen encoders' weights in the host's memory: training " in swarm.log(name), 60, "a refusal")
                break
            swarm.wait_job(job, "done")
            swarm.kill(name)
            out = tmp_path / f"out-{name}"
            exported = swarm.skerry("export", job, "--out", out, "--raw")
            assert exported.returncode == 0, exported.stderr
            found[name] = only_weights(out)
            said = re.search(r"their weights \((\S+ MiB)\) stay in the host's memory.*a step of %d samples copies (\S+ MiB), which takes \S+ s at "
                             r"the measured \S+ \S+/s" % (8 // devices), swarm.log(name))
            assert bool(said) == (name == "streamed"), swarm.log(name)
            assert not said or said.group(1) == said.group(2)
    assert equal(found["whole"], found["streamed"])


def test_jobs_in_turn(place, tmp_path):
    """A worker that goes from one job to others and back trains each as if it were the only one, also
    if the frozen networks of all jobs do not fit its memory."""
    keys = {"recipe": "diloco, replicas: 1", "outer": ", fragments: 2, delay: 1", "rounds": 6}
    jobs = [write(place, "one", **keys), write(place, "two", encoders="text: pipe/text_encoder", **keys),
            write(place, "three", encoders="vae: pipe/vae", **{**keys, "sample": ""})]
    made = []
    for n in (1, 3):
        with running(tmp_path / str(n)) as swarm:
            ids = [swarm.submit(job) for job in jobs[:n]]
            swarm.worker("a")
            for job in ids:
                swarm.wait_job(job, "done")
            out = os.path.join(place, f"turn-{n}")
            done = swarm.skerry("export", ids[0], "--out", out)
            assert done.returncode == 0, done.stderr
            made.append(read_safetensors(os.path.join(out, "diffusion_pytorch_model.safetensors")))
    assert equal(*made)


def changed(place, name, part, file="config.json", **config):
    """A copy of the pipeline with another config.json of a part, or another such file."""
    folder = os.path.join(place, name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(place, "pipe"), folder)
    path = os.path.join(folder, part, file)
    with open(path, encoding="utf-8") as f:
        values = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**values, **config}, f)
    return folder


def refused(place, name, words, **keys):
    done = skerry("check", write(place, name, **keys))
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def test_what_does_not_fit_is_refused(place):
    refused(place, "no-folder", ["nowhere"], encoders="vae: nowhere", sample="")
    refused(place, "no-pipeline", ["encoders.path", "pipe/vae has no model_index.json"], encoders="path: pipe/vae")
    refused(place, "whole", ["pipe is a whole pipeline", "encoders.path"], encoders="vae: pipe", sample="")
    refused(place, "swapped", ["text_encoder", "AutoencoderKL"], encoders="vae: pipe/text_encoder", sample="")
    changed(place, "zero", "vae", scaling_factor=0)
    refused(place, "scale", ["scaling_factor is 0"], encoders="path: zero")
    changed(place, "narrow", "text_encoder", vocab_size=100)
    refused(place, "embedding", ["narrow/text_encoder", "token_embedding.weight is (", "config.json makes it (100, 32)"], encoders="path: narrow")
    small = changed(place, "small", "text_encoder")
    frozen_models.clip(os.path.join(small, "text_encoder"), 100)
    refused(place, "vocab", ["the tokenizer in", "small/tokenizer has", "small/text_encoder knows 100", "different models"], encoders="path: small")
    refused(place, "tokens", ["encoders.tokens is 99", "24 positions"], encoders="path: pipe, tokens: 99")
    refused(place, "one-token", ["encoders.tokens is '1'", "from 2 to 4096"], encoders="path: pipe, tokens: 1")
    changed(place, "short", "tokenizer", "tokenizer_config.json", model_max_length=1)
    refused(place, "length", ["1 token", "short/tokenizer", "at least 2"], encoders="path: short")
    refused(place, "run", ["encoders.run"], encoders="text: pipe/text_encoder, run: job")
    refused(place, "cache", ["encoders.cache is 1 MiB", "shard of 60000 pictures", "235"],
            encoders="path: pipe, run: worker, cache: 1", data=", shard_samples: 60000")
    for old, new, words in (("patch: 4", "patch: 5", "model.patch is 5, which does not divide the 16 x 16 latents"),
                            ("size: 32", "size: 512", "data.image_size is 512, but the VAE in")):
        path = write(place, "sizes")
        with open(path, encoding="utf-8") as f:
            text = f.read().replace(old, new)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = skerry("check", path)
        assert words in done.stderr, done.stderr


def test_weights_that_are_not_numbers(place):
    folder = os.path.join(place, "nan")
    frozen_models.pipeline(folder, WORDS)
    path = os.path.join(folder, "vae", "diffusion_pytorch_model.safetensors")
    with open(path, "r+b") as f:
        f.seek(-4, os.SEEK_END)
        f.write(np.array([np.nan], np.float32).tobytes())
    refused(place, "not-a-number", ["nan/vae", "decoder.conv_out.bias"], encoders="path: nan")


def test_captions_without_a_text_encoder(place, tmp_path, swarm):
    """They are not used, which is said once, with the keys that would use them."""
    path = write(place, "unused", encoders="vae: pipe/vae", sample="")
    shutil.copytree(os.path.join(place, "data"), tmp_path / "pics")
    for done in (skerry("check", path), swarm.skerry("submit", path),
                 skerry("new", "unused", "--images", "pics", "--minutes", "1", "--image-size", "16", cwd=tmp_path)):
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("not used: the images' captions")]
        assert len(said) == 1 and "encoders.text" in said[0] and "encoders.path" in said[0] and "--encoders" in said[0], done.stderr
    done = skerry("check", write(place, "used"))
    assert done.returncode == 0 and "not used" not in done.stderr, done.stderr


def test_no_captions(place):
    os.makedirs(os.path.join(place, "plain"), exist_ok=True)
    dataset.make(os.path.join(place, "plain", "data"), classes=2, images=32, size=32)
    path = write(os.path.join(place, "plain"), "job", encoders="path: ../pipe")
    done = skerry("check", path)
    assert done.returncode != 0
    assert "caption" in done.stderr


def test_the_examples_networks_of_pictures_as_people_have_them(tmp_path):
    """A picture without a caption, and one that is none, cost nothing; without any caption there are no words to know."""
    captioned(tmp_path, images=16)
    torn = tmp_path / "data" / "disc" / "torn.png"
    torn.write_bytes(b"no picture")
    made = [sys.executable, EXAMPLE, tmp_path / "data", tmp_path / "pipe", "--side", "16", "--steps", "1"]
    done = subprocess.run(made, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and f"{torn} is left out" in done.stdout and "latents: 16 pictures" in done.stdout, done.stdout + done.stderr
    assert "red</w>" in json.loads((tmp_path / "pipe/tokenizer/vocab.json").read_text(encoding="utf-8"))
    for path in (tmp_path / "data").glob("*/*.txt"):
        path.unlink()
    done = subprocess.run(made, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and done.stderr.startswith("latents: no picture in ") and "Traceback" not in done.stderr, done.stderr
