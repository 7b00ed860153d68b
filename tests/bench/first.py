"""Whether a job file with little more than its required keys trains well: prints a table, writes build/figures/first.json.

    first.py --build build --emoji DIR --text DIR [--only NAME ...] [--jobs NAME ...]

Real daemons on loopback. The held-out loss is that of fixed noise (or texts): it rises when the model became worse, and
not because other samples were drawn."""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tools")]
from bench import Figures, dataset, measure_within  # noqa: E402
import frozen_models  # noqa: E402  (tests/tools)
import rounds  # noqa: E402

JOB = """name: first
seed: 3
data: {{path: {path}, holdout: {holdout}}}
model: {{{model}}}
train: {{batch: {batch}{train}}}
recipe: {{name: {recipe}}}
outer: {{rounds: {rounds}, steps: {steps}{outer}}}
sample: {{{sample}}}
eval: {{every: {every}, samples: 256}}
"""
IMAGES = dict(holdout="0.1, image_size: 16", model="patch: 4, dim: 64, depth: 2, heads: 2", batch=16, sample="count: 1, steps: 1")
TEXTS = dict(holdout="0.1, shard_samples: 64", model="type: llama, dim: 64, depth: 2, heads: 2, context: 64", batch=8, sample="tokens: 1")
KINDS = {"code": ("c", "python"), "prose": ("licences", "history"), "all": ("c", "python", "licences", "history")}
ROUNDS, STEPS = 12, 20
DEMO = os.path.join(HERE, "..", "..", "deploy", "demo", "emoji.yaml")
# Of whose time is foretold: some seconds each.
TIMED = {
    "images": ("emoji", "model: {{patch: 2, dim: 96, depth: 4, heads: 4}}\ntrain: {{batch: 32}}\n"),
    "texts": ("prose", "model: {{type: llama, dim: 128, depth: 4, heads: 4, context: 128}}\ntrain: {{batch: 16}}\n"),
    "captions": ("emoji", "encoders: {{path: {encoders}}}\nmodel: {{patch: 1, dim: 96, depth: 3, heads: 4}}\ntrain: {{batch: 16}}\n"),
}
TIMED_JOB = "name: timed\nseed: 3\ndata: {{path: {path}, holdout: 0.05{size}}}\nouter: {{rounds: 8, steps: 30}}\nrecipe: {{replicas: 2}}\n"
RATES = [{"train": f", lr: {lr}{more}"} for lr in ("1e-3", "2e-3", "4e-3", "8e-3") for more in ("", ", schedule: decay")]
BETAS = [{"train": ", beta2: 0.95"}]
MOMENTA = [{"outer": f", momentum: {mu}"} for mu in (0.5, 0.6, 0.7, 0.9)]
LONG, LARGE, MANY = {"steps": 100}, {"steps": 25, "batch": 64}, {"steps": 50, "recipe": "diloco, replicas: 4"}
# What each job without keys about training is compared with.
GAPS = {
    "emoji": ("emoji", LONG, RATES + BETAS),
    "shapes": ("shapes", LONG, RATES + BETAS),
    "code": ("code", LONG, RATES + BETAS),
    "prose": ("prose", LONG, RATES + BETAS),
    "code, batch 64": ("code", LARGE, RATES[::2]),
    "emoji, 4 replicas": ("emoji", MANY, MOMENTA),
    "prose, 4 replicas": ("prose", MANY, MOMENTA),
}
# Of every recipe; what is said of outer beyond its length makes it another kind of job.  Contributions to an asynchronous
# one arrive in another order every time, which moves its losses: the worst of three runs counts.
JUMPS = {
    "images": ("emoji", "diloco, replicas: 2", ""),
    "texts": ("prose", "diloco, replicas: 4", ""),
    "fragments": ("code", "diloco, replicas: 2", ", fragments: 2, delay: 4"),
    "async": ("shapes", "diloco, replicas: 2", ", async: true"),
    "experts": ("emoji", "ddm, experts: 4", ""),
    "experts twice": ("shapes", "ddm, experts: 2, replicas: 2", ""),
    "paths": ("all", "dipaco, levels: [2, 2]", ""),
    "student": ("emoji", "distill, replicas: 2, teacher: {teacher}", ""),
}


def collect(args, folder):
    """{name: path} of the data sets."""
    data = {"emoji": os.path.abspath(args.emoji), "shapes": dataset.make(os.path.join(folder, "shapes"), classes=4, images=1000)}
    with open(os.path.join(args.text, "train.jsonl"), encoding="utf-8") as f:
        lines = [(json.loads(line)["domain"], line) for line in f]
    for name, domains in KINDS.items():
        data[name] = os.path.join(folder, f"{name}.jsonl")
        with open(data[name], "w", encoding="utf-8") as f:
            f.writelines(line for domain, line in lines if domain in domains)
    return data


class Lab:
    """A coordinator and two workers, which run jobs one after the other."""

    def __init__(self, swarm, data):
        self.swarm, self.data = swarm, data
        swarm.coordinator()
        for name in ("a", "b"):
            swarm.worker(name)

    def submit(self, what, **keys):
        kind = IMAGES if what in ("emoji", "shapes") else TEXTS
        path = os.path.join(self.swarm.folder, "job.yaml")
        values = {"path": self.data[what], "train": "", "outer": "", "every": 1, "rounds": ROUNDS, "steps": STEPS, **kind, **keys}
        with open(path, "w", encoding="utf-8") as f:
            f.write(JOB.format(**values))
        return self.swarm.submit(path)

    def train(self, what, **keys):
        """The job's id and its metrics."""
        job = self.submit(what, **keys)
        self.swarm.wait_job(job, "done", 600)
        lines = self.swarm.get(f"/v1/jobs/{job}/metrics").text.splitlines()
        return job, [json.loads(line) for line in lines]


def largest_rise(rows, routers):
    """The largest rise of the held-out loss between two rounds of a path other than a router, as a share; with the path and the round."""
    worst, before = (-1.0, 0, 0), {}
    for r in sorted((r for r in rows if r["kind"] == "eval"), key=lambda r: r["round"]):  # that of a version may end before that of an older one
        if r["path"] not in routers:
            if r["path"] in before:
                worst = max(worst, (r["eval_loss"] / before[r["path"]] - 1, r["path"], r["round"]))
            before[r["path"]] = r["eval_loss"]
    return worst


def jumps(fig, lab, args):
    """Judges the outer weights themselves (ema: 0), not their average, which would hide a jump."""
    found, teacher = {}, None
    for name, (what, recipe, outer) in JUMPS.items():
        if args.jobs and name not in args.jobs:
            continue
        if teacher is None and "teacher" in recipe:
            continue
        rises = []
        for _ in range(3 if "async" in outer else 1):
            job, rows = lab.train(what, recipe=recipe.format(teacher=teacher), outer=", ema: 0" + outer)
            if name == "experts":
                teacher = job
            routers = [p["path"] for p in lab.swarm.job(job)["path_list"] if p["network"] == "router"]
            rise, path, number = largest_rise(rows, routers)
            rises.append(rise)
            curve = " ".join(f"{r['eval_loss']:.2f}" for r in sorted(rows, key=lambda r: r["round"]) if r["kind"] == "eval" and r["path"] == path)
            print(f"  {name:14} {100 * rise:6.1f} % at round {number} of path {path}: {curve}", flush=True)
        found[name] = max(rises)
    if found:
        worst = max(found, key=found.get)
        fig.add("default_jump", 100 * found[worst], "%", "<=5", f"the largest of {len(found)} jobs: {worst}")


def gaps(fig, lab, args):
    """The held-out loss of a job without keys about training, over the best of it and the jobs with them."""
    found = {}
    for name, (what, keys, others) in GAPS.items():
        if args.jobs and name not in args.jobs:
            continue
        jobs = {"": lab.submit(what, **{"recipe": "diloco, replicas: 1", "every": 0, **keys})}
        for more in others:
            jobs[", ".join(more.values())[1:]] = lab.submit(what, **{"recipe": "diloco, replicas: 1", "every": 0, **keys, **more})
        loss = {more: lab.swarm.wait_job(job, "done", 600)["eval_loss"] for more, job in jobs.items()}
        best = min(loss, key=loss.get)
        found[name] = loss[""] / loss[best] - 1
        print(f"  {name:18} {100 * found[name]:6.1f} %: {loss['']:.4f}, the best {loss[best]:.4f} with{best or ' the defaults'}", flush=True)
        print("  " + " " * 18 + ";".join(f"{more}: {value:.4f}" for more, value in loss.items() if more), flush=True)
    worst = max(found, key=found.get)
    fig.add("default_gap", 100 * found[worst], "%", "<=3", f"the largest of {len(found)} jobs: {worst}")


def timed(argv, seconds=300):
    begun = time.monotonic()
    said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False)
    if said.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {said.stderr[-600:]}")
    return time.monotonic() - begun, said.stdout


def predictions(fig, lab, args):
    """`skerry check` before `skerry run`, which has two workers of its own on this machine."""
    folder, found = os.path.join(lab.swarm.folder, "timed"), {}
    os.makedirs(folder)
    encoders = frozen_models.pipeline(os.path.join(folder, "encoders"), ["face", "flag"])
    skerry = os.path.join(os.environ["SKERRY_BIN"], "skerry")
    for name, (what, keys) in TIMED.items():
        job = os.path.join(folder, f"{name}.yaml")
        with open(job, "w", encoding="utf-8") as f:
            f.write(TIMED_JOB.format(path=lab.data[what], size=", image_size: 16" if what == "emoji" else "") + keys.format(encoders=encoders))
        said = json.loads(timed([skerry, "check", job, "--here", "--json"])[1])
        real = timed([skerry, "run", job, "--out", os.path.join(folder, name)])[0]
        found[name] = said["seconds"] / real
        print(f"  {name:14} {found[name]:6.2f}: predicted {said['seconds']:.1f} s, took {real:.1f} s", flush=True)
    worst = max(found, key=lambda name: max(found[name], 1 / found[name]))
    fig.add("check_prediction", max(found[worst], 1 / found[worst]), "x", "<=1.4",
            f"too much or too little, the worst of {len(found)} jobs: {worst}, {found[worst]:.2f} of its time predicted")


def demo(fig, lab, args):
    """What `make demo` runs after building and drawing the emoji: to the first grid of samples, and to the end."""
    out = os.path.join(lab.swarm.folder, "demo")
    first, grid, begun = None, os.path.join(out, "samples.png"), time.monotonic()
    argv = [os.path.join(os.environ["SKERRY_BIN"], "skerry"), "run", DEMO, "--workers", "3", "--drill", "12", "--out", out]
    run = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while run.poll() is None:
            if first is None and os.path.exists(grid):
                first = time.monotonic() - begun
            time.sleep(0.2)
    finally:
        run.terminate()
        run.wait()
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with status {run.returncode}")
    fig.add("first_grid_minutes", first / 60 if first else None, "min", "<=2")
    fig.add("demo_minutes", (time.monotonic() - begun) / 60, "min", "<=9")


def overheads(fig, lab, args):
    """Runs jobs in swarms of their own, so that no other job has work for the machine."""
    rounds.overheads(fig, lambda name: type(lab.swarm)(os.path.join(lab.swarm.folder, name)))


def slow_link(fig, lab, args):
    rounds.slow_link(fig, lambda name: type(lab.swarm)(os.path.join(lab.swarm.folder, name)))


FIGURES = {"demo_minutes": demo, "round_overhead_s": overheads, "slow_link_wait": slow_link, "default_jump": jumps, "default_gap": gaps, "check_prediction": predictions}
JOBS = {"default_jump": JUMPS, "default_gap": GAPS}
LIMITS = {"demo_minutes": 900, "round_overhead_s": 540, "slow_link_wait": 460, "default_jump": 1500, "default_gap": 4200, "check_prediction": 420}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--emoji", required=True, help="the pictures of make demo-data")
    p.add_argument("--text", required=True, help="the folder of examples/text-data.py")
    p.add_argument("--only", action="append", default=[], choices=list(FIGURES))
    p.add_argument("--jobs", action="append", default=[], choices=[*JUMPS, *GAPS], help="only these, of the figures that have them")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made goes: processes, namespaces
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    sys.path.insert(0, os.path.join(HERE, "..", "integration"))
    from swarm import Swarm
    fig = Figures()
    with tempfile.TemporaryDirectory(prefix="skerry-first-") as folder:
        swarm = Swarm(folder)
        try:
            lab = Lab(swarm, collect(args, folder))
            for name, measure in FIGURES.items():
                if (not args.only or name in args.only) and (not args.jobs or set(args.jobs) & set(JOBS.get(name, ()))):
                    measure_within(fig, (name,), LIMITS[name], lambda measure=measure: measure(fig, lab, args))
                    fig.write(f"{args.build}/figures/first.json", keep=bool(args.only or args.jobs))
        finally:
            swarm.stop()
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
