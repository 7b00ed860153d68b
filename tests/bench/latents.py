"""Measure every figure of latents and captions, write build/figures/latents.json.

    latents.py --build build --encoders build/examples/latents/encoders --pictures build/demo/emoji [--only NAME ...]

Runs in the environment of deploy/test-venv.sh.  A figure that could not be measured is said with its reason and does
not hold; with `--only` the other figures stay as they were."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
    os.environ.setdefault(name, "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from diffusers import AutoencoderKL, PixArtTransformer2DModel  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import CLIPTextModel, CLIPTokenizer  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools"), str(HERE.parent / "latents")]
import bench  # noqa: E402
import dataset  # noqa: E402
import frozen_models  # noqa: E402

HELD_OUT, DRAWS = 20, 8  # one picture of so many; (t, noise) for each of them


# ---- what the comparisons of tests/latents say ----

def lines_of(args, *argv, timeout=3600):
    """The lines that a Python program prints, in this environment."""
    out = subprocess.run([sys.executable, *map(str, argv)], stdout=subprocess.PIPE, text=True, timeout=timeout, check=False,
                         env={**os.environ, "SKERRY_BUILD": args.build})
    return out.stdout.splitlines()


def tested(args, test):
    return lines_of(args, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", HERE.parent / "latents" / test)


def differences(fig, args, test):
    """The largest differences from transformers and diffusers, over random configurations."""
    said = tested(args, test)
    rows = [json.loads(line) for line in said if line.startswith("{")]
    if not rows:
        raise RuntimeError(said[-1] if said else "the comparisons said nothing")
    for row in rows:
        fig.add(row["name"], row["value"], row["unit"], f"<={row['bound']}", said[-1])


def token_mismatches(fig, args):
    said = tested(args, "test_tokenizers.py")
    found = [re.match(r"\.*token_mismatches .*: (\d+) of (\d+) ", line) for line in said]
    found = [(int(m.group(1)), int(m.group(2))) for m in found if m]
    fig.add("token_mismatches", sum(f[0] for f in found) if found else None, "strings", "<=0",
            f"of {sum(f[1] for f in found)} of CLIP and T5; {said[-1] if said else ''}")


# ---- small jobs ----

JOB = """name: latents
seed: 7
data: {{path: {data}, image_size: {side}, holdout: 0, shard_samples: 64{more}}}
encoders: {{path: {encoders}, run: {run}}}
model: {{patch: 2, dim: 32, depth: 2, heads: 2}}
train: {{batch: 8, lr: 1e-3}}
recipe: {{replicas: {replicas}}}
outer: {{rounds: 2, steps: {steps}}}
sample: {{count: 1, steps: 1, columns: 1}}
"""


def captioned(folder, images, side, noise=False):
    """Makes pictures of coloured shapes, or of noise, whose latents compress least."""
    dataset.make(folder, classes=2, images=images, size=side)
    rng = np.random.default_rng(3)
    for path in pathlib.Path(folder).glob("*/*.png"):
        if noise:
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(path)
        path.with_suffix(".txt").write_text(f"a {random.Random(path.name).choice(['red', 'blue'])} {path.parent.name}\n")
    return folder


def write(folder, text):
    path = os.path.join(folder, "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def exported(args, job, out, workers=2, seconds=3600):
    """Runs a job and returns its weights."""
    done = subprocess.run([f"{args.build}/bin/skerry", "run", job, "--workers", str(workers), "--out", out],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"skerry run ended with {done.returncode}: {done.stderr[-500:]}")
    return os.path.join(out, "model", "diffusion_pytorch_model.safetensors")


def cache_equal(fig, args):
    with tempfile.TemporaryDirectory() as folder:
        frozen_models.pipeline(os.path.join(folder, "pipe"), ["a", "red", "blue", "disc", "square"])
        captioned(os.path.join(folder, "data"), 128, 32)
        weights = {}
        for way in ("fly", "worker", "job"):
            job = write(folder, JOB.format(data="data", side=32, encoders="pipe", run=way, replicas=2, steps=6,
                                             more=", flip: true"))
            weights[way] = np.fromfile(exported(args, job, os.path.join(folder, way)), np.uint8)
    sizes = {len(w) for w in weights.values()}
    differing = sum(int(np.unpackbits(weights["fly"] ^ weights[way]).sum()) for way in ("worker", "job")) if len(sizes) == 1 else None
    fig.add("cache_equal", differing, "differing bits", "<=0", f"fly, worker, job: {sizes} bytes each, flips and captions")


def fetched(args, folder, pictures):
    """Bytes that a worker fetches that joins after another one has encoded all pictures."""
    daemons = []
    data = captioned(os.path.join(folder, "data"), pictures, 256, noise=True)
    job = write(folder, JOB.format(data=data, side=256, encoders=os.path.join(folder, "pipe"), run="job", replicas=1,
                                   steps=pictures // 8, more=""))  # a phase sees all of them

    def worker(c, name):
        daemons.append(bench.Daemon([f"{args.build}/bin/workerd", "--join", c.worker, "--name", name, "--threads", "2",
                                     "--work-dir", os.path.join(folder, name)], os.path.join(folder, name + ".log")))
        return daemons[-1]

    def ask(c, *what):
        out = subprocess.run([f"{args.build}/bin/skerry", *what, "--json", "--server", c.user], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, check=True).stdout
        return json.loads(out.splitlines()[-1])

    try:
        c = bench.start_coordinator(args, folder)
        daemons.append(c)
        number = str(ask(c, "submit", job)["id"])
        first = worker(c, "encodes")
        first.wait_for(lambda: ask(c, "status", number)["state"] not in ("submitted", "waiting", "queued", "encoding"), 900)
        first.kill(signal.SIGKILL)
        second = worker(c, "trains")
        second.wait_for(lambda: ask(c, "status", number)["state"] in ("done", "failed"), 900)
        seen = None
        while True:  # the counters come by heartbeat
            now = [w["bytes"]["data"]["down"] for w in ask(c, "workers")["items"] if w["name"] == "trains"]
            if now and now == seen:
                return now[0]
            seen = now
            bench.time.sleep(2.5)
    finally:
        for d in daemons:
            d.kill()


def job_bytes(fig, args):
    """The difference between many pictures and few, in which weights and the text encoder cancel."""
    few, many = 64, 192
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for n in (few, many):
            place = os.path.join(folder, str(n))
            words = frozen_models.pipeline(os.path.join(place, "pipe"), ["a", "red", "blue", "disc", "square"])
            shutil.rmtree(os.path.join(words, "vae"))
            frozen_models.vae(os.path.join(words, "vae"), channels=(4, 4, 4, 4))
            found[n] = fetched(args, place, n)
    each = (found[many] - found[few]) / (many - few)
    fig.add("job_bytes", each / 1024, "KiB a picture", "<=17", "at the worker's sockets, 256 x 256, 4 channels, a caption")


# ---- speed ----

def encode_vs_torch(fig, args):
    for name in ("vae_encode", "clip", "t5"):
        value, why = None, "not measured in ten minutes"
        try:
            said = [json.loads(line) for line in lines_of(args, HERE.parent / "latents" / "speed_frozen.py", name, timeout=600)
                    if line.startswith("{")]
            value = said[0]["value"]
            why = "{ours:.3g} against {theirs:.3g} samples/s; torch ".format(**said[0]["samples_s"]) + said[0]["torch"]
        except (IndexError, subprocess.TimeoutExpired):
            pass
        fig.add(f"encode_vs_torch_{name}", value, "x samples/s", ">=1.0", why)


def train_text_dit(fig, args, dtype):
    bench.train_vs_torch(fig, args, dtype, ">=1.3", "train_text_dit", 8, ["--grid", "16", "--caption-tokens", "77"])


# ---- a captioned model, judged by diffusers ----

def example(args, folder):
    """Trains examples/latents-emoji.yaml, with fewer rounds, on all pictures but one of HELD_OUT; the
    folder of its export and the pictures that it has not seen."""
    held = []
    for i, path in enumerate(sorted(pathlib.Path(args.pictures).glob("*/*.png"))):
        if i % HELD_OUT == 0:
            held.append(path)
            continue
        place = pathlib.Path(folder, "data", path.parent.name)
        place.mkdir(parents=True, exist_ok=True)
        for file in (path, path.with_suffix(".txt")):
            os.symlink(file.resolve(), place / file.name)
    text = (ROOT / "examples/latents-emoji.yaml").read_text(encoding="utf-8")
    text = re.sub(r"data: .*", "data: {path: data, image_size: 32, holdout: 0}", text)
    text = re.sub(r"encoders: .*", f"encoders: {{path: {os.path.abspath(args.encoders)}}}", text)
    text = re.sub(r"rounds: \d+", f"rounds: {args.rounds}", text)
    text = re.sub(r"\neval: .*", "", text)
    return os.path.dirname(exported(args, write(folder, text), os.path.join(folder, "out"))), held


class Judge:
    """The export and its encoders as diffusers and transformers open them."""

    def __init__(self, model, encoders):
        self.vae = AutoencoderKL.from_pretrained(os.path.join(encoders, "vae")).eval()
        self.text = CLIPTextModel.from_pretrained(os.path.join(encoders, "text_encoder")).eval()
        self.tokenizer = CLIPTokenizer.from_pretrained(os.path.join(encoders, "tokenizer"))
        self.model, self.report = PixArtTransformer2DModel.from_pretrained(model, output_loading_info=True)
        self.model.eval()

    def latents(self, paths, side=32):
        pixels = np.stack([np.asarray(Image.open(p).convert("RGB").resize((side, side), Image.LANCZOS)) for p in paths])
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
        return (self.vae.encode(x).latent_dist.mode() - (self.vae.config.shift_factor or 0)) * self.vae.config.scaling_factor

    def states(self, captions):
        t = self.tokenizer(captions, padding="max_length", truncation=True, max_length=self.text.config.max_position_embeddings,
                           return_tensors="pt")
        return self.text(t.input_ids).last_hidden_state, t.attention_mask

    def losses(self, x0, states, mask, order):
        """The loss of each sample with the captions of `order`, at t and noise that do not depend on the captions."""
        g = torch.Generator().manual_seed(9)
        total = torch.zeros(len(x0))
        for _ in range(DRAWS):
            eps, t = torch.randn(x0.shape, generator=g), torch.sigmoid(torch.randn(len(x0), generator=g))
            s = t.view(-1, 1, 1, 1)
            v = self.model((1 - s) * x0 + s * eps, encoder_hidden_states=states[order], timestep=1000 * t,
                           encoder_attention_mask=mask[order], return_dict=False)[0]
            total += (v - (eps - x0)).square().mean((1, 2, 3))
        return total / DRAWS


def captions(fig, args):
    import test_pixart
    test_pixart.PROBE = pathlib.Path(args.build).resolve() / "release/tests/tools/worker/pixart_probe"
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model, held = example(args, folder)
        judge = Judge(model, args.encoders)
        x0 = judge.latents(held)
        states, mask = judge.states([p.with_suffix(".txt").read_text(encoding="utf-8").strip() for p in held])
        own = torch.arange(len(held))
        right, wrong = (judge.losses(x0, states, mask, order) for order in (own, own.roll(len(held) // 2)))
        gain = (wrong - right).numpy()
        fig.add("captions_matter", float(gain.mean() / (gain.std(ddof=1) / len(gain)**0.5)), "standard errors", ">=3",
                note=f"{len(held)} held-out emoji, {right.mean():.4f} with their captions, {wrong.mean():.4f} shuffled, "
                     f"{args.rounds} rounds, in diffusers")
        inputs = test_pixart.draw_inputs(judge.model, 4, 24)
        got = test_pixart.probe(judge.model, os.path.join(model, "diffusion_pytorch_model.safetensors"), inputs, "f32",
                                pathlib.Path(folder))
        off = test_pixart.difference(got["pred"], test_pixart.forward(judge.model, inputs))
        fig.add("diffusers_opens_export", None if any(judge.report.values()) else off, "relative", "<=2e-5",
                note=f"missing, surplus, misshapen: {[len(v) for v in judge.report.values()]}")


PARTS = {
    "frozen": lambda fig, args: differences(fig, args, "test_frozen.py"),
    "pixart": lambda fig, args: differences(fig, args, "test_pixart.py"),
    "token_mismatches": token_mismatches,
    "cache_equal": cache_equal,
    "encode_vs_torch": encode_vs_torch,
    "train_text_dit_bf16_vs_torch": lambda fig, args: train_text_dit(fig, args, "bf16"),
    "train_text_dit_f32_vs_torch": lambda fig, args: train_text_dit(fig, args, "f32"),
    "captions": captions,
    "job_bytes": job_bytes,
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--encoders", default="build/examples/latents/encoders")
    p.add_argument("--pictures", default="build/demo/emoji")
    p.add_argument("--only", action="append", default=[], choices=PARTS)
    p.add_argument("--rounds", type=int, default=8, help="of the example's job, for captions")
    args = p.parse_args()
    args.torch = sys.executable
    out = os.path.join(args.build, "figures", "latents.json")
    fig = bench.Figures()
    for name in args.only or PARTS:
        try:
            PARTS[name](fig, args)
        except (OSError, RuntimeError, KeyError, subprocess.SubprocessError) as e:
            fig.add(name, None, "", "<=0", str(e))
        fig.write(out, keep=bool(args.only))
    missed = [row["name"] for row in fig.rows if not row["holds"]]
    print(f"\n{len(fig.rows) - len(missed)} of {len(fig.rows)} figures hold; {out}")


if __name__ == "__main__":
    main()
