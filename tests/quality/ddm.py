"""Decentralized Diffusion Models against a monolith of equal FLOPs.

Held-out flow-matching loss on fixed (t, noise), and Fréchet distance in the features of
a small classifier that this script trains on the real images.  K experts share the
monolith's batch, so all rows have the same cost except the router; a random partition is
the control.  DATA is a folder of class folders, or of WebDataset tars."""
import os

import frechet
import lab

JOB = """name: {name}
seed: 11
data: {{path: "{data}", image_size: {side}, flip: {flip}, holdout: 0.05, shard_samples: 512}}
model: {{patch: {patch}, dim: {dim}, depth: {depth}, heads: 4}}
router: {{dim: 64, depth: 3, heads: 4}}
train: {{batch: {batch}, lr: {lr}, warmup: 100, schedule: cosine, beta2: 0.95}}
recipe: {{{recipe}}}
partition: {{method: {method}}}
outer: {{rounds: {rounds}, steps: 50, lr: 1.0, momentum: 0, ema: 0.7}}
wire: {{up: bf16, down: bf16}}
sample: {{count: {count}, steps: 25, guidance: 1.0, columns: 32}}
eval: {{every: {every}, samples: {evals}}}
"""

# Small networks on large batches, the regime of the paper: a monolith that its size holds back, and a batch that a K-th
# of still trains with as few steps.  With a network that has room for everything and a batch of 64 the experts only
# see fewer samples each (docs/results.md).
SETS = {
    "emoji": {"side": 16, "flip": "false", "patch": 2, "dim": 64, "depth": 3, "batch": 256, "lr": "2e-3", "rounds": 24,
              "evals": 400},
    "cifar10": {"side": 32, "flip": "true", "patch": 4, "dim": 64, "depth": 3, "batch": 256, "lr": "2e-3", "rounds": 24,
                "evals": 2048},
}
SAMPLES = 1024


def job(name, data, here, recipe, method="auto"):
    s = dict(SETS[name])
    s["rounds"] = here.steps(s["rounds"])
    return JOB.format(name=f"{name}-ddm", data=data, recipe=recipe, method=method, count=SAMPLES,
                      every=max(1, s["rounds"] // 4), **s)


def measure(here, name, data, args):
    real = frechet.Real(data, SETS[name]["side"], os.path.join(here.out, "features.npz"))
    rows, losses, distances = [], {}, {}

    def add(label, report, loss, picture):
        d = real.distance(os.path.join(report.folder, picture), 32, SETS[name]["side"])
        rows.append([label, loss, d])
        losses[label], distances[label] = loss, d

    one = here.run("monolith", job(name, data, here, "name: diloco"), 1)
    if one is not None:
        add("monolith", one, one.eval_loss, "samples.png")
    for label, k, method in (("4 experts", 4, "auto"), ("8 experts", 8, "auto"), ("4 experts, random", 4, "random")):
        r = here.run(f"{k}-{method}", job(name, data, here, f"name: ddm, experts: {k}", method), 2, "--strategies",
                     "full,top1,topk")
        if r is None:
            continue
        for strategy, grid in (("full", "full"), ("top1", "top1"), ("top2", "topk")):
            add(f"{label}, {strategy}", r, r.figure(f"loss {strategy}"), f"samples-{grid}.png")
        crossing = sum(m["bytes_from_others"] for m in r.json["job"]["modules"])
        here.figure(f"ddm_{name}_{k}_{method}_bytes_between_experts", crossing, "B", "=0", crossing == 0)
    return rows, losses, distances


def main():
    p = lab.arguments(__doc__, "the images")
    p.add_argument("--set", dest="name", choices=SETS, default="emoji")
    args = p.parse_args()
    if not os.path.isdir(args.data):
        print(f"ddm: {args.data} is not there. Nothing was measured.")
        return
    here = lab.Lab("ddm-" + args.name, args)
    data = os.path.abspath(args.data) + ("/train-*.tar" if args.name == "cifar10" else "")
    rows, losses, distances = measure(here, args.name, data, args)
    here.table([args.name, "held-out loss", "Fréchet distance"], rows)
    here.plot({label: [(loss, distance)] for label, loss, distance in rows}, "held-out loss", "Fréchet distance")
    mixed = [k for k in losses if k != "monolith" and "random" not in k and "oracle" not in k]
    if "monolith" in losses and mixed:
        best = min(mixed, key=lambda k: distances[k])
        better = losses[best] < losses["monolith"] and distances[best] < distances["monolith"]
        here.figure(f"ddm_{args.name}_loss_ratio", losses[best] / losses["monolith"], "x", "<1 on one set",
                    losses[best] < losses["monolith"], row=best)
        here.figure(f"ddm_{args.name}_frechet_ratio", distances[best] / distances["monolith"], "x", "<1 on one set", better,
                    row=best)


main()
