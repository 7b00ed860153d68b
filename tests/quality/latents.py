"""Decentralized Diffusion Models against a monolith of equal FLOPs, on latents and with captions.

The pictures are emoji, the captions their names; the VAE and the text encoder are those that
examples/latents_data.py makes.  Held-out flow-matching loss on fixed (t, noise), and Fréchet
distance in the features of a small classifier trained on the real images (frechet.py), of samples
drawn from the captions of real emoji.  Four experts share the monolith's batch, so all rows cost
the same except the router; a random partition is the control."""
import os
import sys

import lab

sys.path.insert(1, os.path.join(lab.HERE, "..", "..", "examples"))
import latents_data  # noqa: E402  (before PyTorch: it says how its threads wait)
import frechet  # noqa: E402

JOB = """name: latents-ddm
seed: 11
data: {{path: "{data}", image_size: {side}, holdout: 0.05}}
encoders: {{path: "{encoders}", run: job}}
model: {{patch: 1, dim: 64, depth: 3, heads: 4}}
router: {{patch: 2, dim: 64, depth: 3, heads: 4}}
train: {{batch: 256, lr: 2e-3, warmup: 100, schedule: cosine, beta2: 0.95}}
recipe: {{{recipe}}}
partition: {{method: {method}}}
outer: {{rounds: {rounds}, steps: {steps}, lr: 1.0, momentum: 0, ema: 0.7}}
wire: {{up: bf16, down: bf16}}
sample: {{count: {count}, steps: 25, guidance: 1.0, columns: 32, prompts: {prompts}}}
eval: {{every: {every}, samples: 400}}
"""
SIDE, SAMPLES, PROMPTS, ROUNDS, STEPS = 32, 512, 64, 24, 50


def job(here, data, encoders, captions, recipe, method="auto"):
    rounds = here.steps(ROUNDS)
    told = [captions[i * len(captions) // PROMPTS].replace('"', "'") for i in range(PROMPTS)]
    return JOB.format(data=data, encoders=encoders, side=SIDE, recipe=recipe, method=method, rounds=rounds, steps=STEPS,
                      count=SAMPLES, prompts="[" + ", ".join(f'"{c}"' for c in told) + "]", every=max(1, rounds // 4))


def measure(here, data, encoders, captions):
    real = frechet.Real(data, SIDE, os.path.join(here.out, "features.npz"))
    rows, found = [], {}

    def add(label, report, loss, picture):
        found[label] = loss, real.distance(os.path.join(report.folder, picture), 32, SIDE)
        rows.append([label, *found[label]])

    one = here.run("monolith", job(here, data, encoders, captions, "name: diloco"), 1)
    if one is not None:
        add("monolith", one, one.eval_loss, "samples.png")
    for label, method in (("4 experts", "auto"), ("4 experts, random", "random")):
        r = here.run(f"4-{method}", job(here, data, encoders, captions, "name: ddm, experts: 4", method), 2,
                     "--strategies", "full,top1,topk")
        if r is None:
            continue
        for strategy, grid in (("full", "full"), ("top1", "top1"), ("top2", "topk")):
            add(f"{label}, {strategy}", r, r.figure(f"loss {strategy}"), f"samples-{grid}.png")
        if method == "auto":
            rows.append(["4 experts, oracle", r.figure("loss oracle"), None])
        crossing = sum(m["bytes_from_others"] for m in r.json["job"]["modules"])
        here.figure(f"latents_4_{method}_bytes_between_experts", crossing, "B", "=0", crossing == 0)
    return rows, found


def main():
    p = lab.arguments(__doc__, "emoji in class folders, each with its name in a .txt")
    p.add_argument("--encoders", required=True, help="a pipeline's folder")
    args = p.parse_args()
    here = lab.Lab("latents", args)
    data = os.path.abspath(args.data)
    rows, found = measure(here, data, os.path.abspath(args.encoders), latents_data.read(data, SIDE)[1])
    here.table(["emoji's latents, captions", "held-out loss", "Fréchet distance"], rows)
    here.plot({label: [point] for label, point in found.items()}, "held-out loss", "Fréchet distance")
    mixed = [k for k in found if k.startswith("4 experts, ") and "random" not in k]
    if "monolith" in found and mixed:
        for i, what in enumerate(("loss", "frechet")):
            best = min(mixed, key=lambda k: found[k][i])
            ratio = found[best][i] / found["monolith"][i]
            here.figure(f"latents_ddm_{what}_ratio", ratio, "x", "<1", ratio < 1, row=best)


main()
