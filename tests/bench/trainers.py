"""Figures of trainers of the user's, through real daemons: print a table, write build/figures/trainers.json.

    trainers.py --build build --out build/figures/trainers.json"""
import argparse
import difflib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
from bench import Figures  # noqa: E402

JOB = """name: figures
seed: 3
data: {{kind: texts, path: tales.jsonl, holdout: 0, shard_samples: 32}}
model: {{type: external, context: 64}}
trainer: {{command: "{command}", files: program, env: [PYTHONPATH={package}, LOG={log}{env}]{more}}}
train: {{batch: 4}}
recipe: {{replicas: {replicas}}}
outer: {{rounds: {rounds}, steps: {steps}, lr: {lr}, momentum: {momentum}, warmup: 0, ema: 0}}
wire: {{up: {wire}, down: {wire}}}
"""


class Bench:
    def __init__(self, build, scratch):
        self.build, self.scratch, self.n = os.path.abspath(build), pathlib.Path(scratch), 0

    def folder(self, source, **keys):
        """The folder of a job, and the folder of its trainer's logs."""
        from test_external import write_tales
        self.n += 1
        folder = self.scratch / f"job-{self.n}"
        (folder / "program").mkdir(parents=True)
        (folder / "log").mkdir()
        shutil.copy(source, folder / "program" / os.path.basename(source))
        write_tales(folder)
        keys = {"command": f"{sys.executable} {os.path.basename(source)}", "more": "", "env": "", "replicas": 1, "rounds": 3,
                "steps": 5, "lr": 1, "momentum": 0, "wire": "f32", **keys}
        (folder / "job.yaml").write_text(JOB.format(package=f"{self.build}/python", log=folder / "log", **keys))
        return folder

    def run(self, folder, workers=1, during=None):
        """Runs a job from submission to end: (its JSON, its exported weights, the swarm's logs)."""
        from common import read_safetensors
        from swarm import running
        with running(folder / "swarm") as s:
            for i in range(workers):
                s.worker(f"w{i}", "--allow-trainers")
            told = s.submit(folder / "job.yaml")
            if during:
                during(s, told)
            job = s.wait_job(told, "done", 300)
            out = folder / "model"
            assert s.skerry("export", told, "--out", str(out)).returncode == 0
            logs = {name: s.log(name) for name in s.processes}
            return job, read_safetensors(out / "model.safetensors"), logs


def phases(folder):
    return [json.load(open(p, encoding="utf-8")) for p in glob.glob(f"{folder}/log/*.json")]


def replay(weight, steps, learn):
    weight = weight.copy()
    for step in steps:
        learn(weight, [np.array(t, np.int32) for t in step])
    return weight


def plain(bench, fig):
    from trainer_programs.logged import learn
    folder = bench.folder(f"{HERE}/trainer_programs/logged.py")
    _, weights, _ = bench.run(folder)
    mine = np.zeros((257, 257), np.float32)
    for phase in sorted(phases(folder), key=lambda p: p["round"]):
        mine = replay(mine, phase["steps"], learn)
    differing = np.unpackbits((mine.view(np.uint32) ^ weights["weight"].view(np.uint32)).view(np.uint8)).sum()
    fig.add("plain_equal", float(differing), "bits", "<=0")


def diloco(bench, fig):
    """DiLoCo written out: the mean of the differences, and Nesterov's momentum as PyTorch computes it."""
    from trainer_programs.logged import learn
    lr, momentum, rounds = 0.7, 0.9, 3
    folder = bench.folder(f"{HERE}/trainer_programs/logged.py", replicas=4, lr=lr, momentum=momentum, rounds=rounds)
    _, weights, _ = bench.run(folder, workers=4)
    theta, moved = np.zeros((257, 257)), np.zeros((257, 257))
    given = phases(folder)
    for r in range(rounds):
        ends = [replay(theta.astype(np.float32), p["steps"], learn) for p in given if p["round"] == r]
        assert len(ends) == 4, "a phase was done twice"
        delta = np.mean([theta - end for end in ends], axis=0)
        moved = momentum * moved + delta
        theta = theta - lr * (delta + momentum * moved)
    fig.add("diloco_equal", float(np.abs(theta - weights["weight"]).max() / np.abs(theta).max()), "relative", "<=1e-5")


def steps(bench, fig):
    folder = bench.folder(f"{HERE}/trainer_programs/logged.py", env=", IDLE=1", rounds=2, steps=300)
    bench.run(folder)
    fig.add("step_overhead_us", float(np.median([s for p in phases(folder) for s in p["step_s"]]) * 1e6), "us", "<=20",
            "median of 600 phase.step() in Python")


def lora(bench, fig):
    folder = bench.folder(f"{HERE}/trainer_programs/lora.py", more=", tensors: ['lora_*']", wire="e3m0", rounds=2)
    job, _, _ = bench.run(folder)
    fig.add("lora_bytes", job["history"][-1]["bytes_up"] / 400000, "bytes/param", "<=0.53")


def stamp(line):
    return time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S")) + float(line[19:23])


def restart(bench, fig):
    """The time from SIGKILL of a trainer to its next step on the same worker, beside the time of its start."""
    folder = bench.folder(f"{HERE}/trainer_programs/logged.py", rounds=2, steps=60)

    def kill(s, told):
        from common import wait_until
        wait_until(lambda: re.search(r"agent: task=\d+ attempt=1 train", s.log("w0")), 60, "a phase")
        pid = int(subprocess.run(["pgrep", "-P", str(s.processes["w0"].pid)], capture_output=True, text=True,
                                 check=True).stdout.split()[0])
        kill.at = time.time()
        os.kill(pid, signal.SIGKILL)
    _, _, logs = bench.run(folder, during=kill)
    text = logs["w0"]
    init = re.search(r"^(.{23}) info  agent: task=\d+ attempt=1 init", text, re.M)
    ready = re.search(r"^(.{23}) info  external: a trainer is here", text, re.M)
    begun = sorted(p["begun"] for p in phases(folder))
    own = (stamp(ready.group(1)) - stamp(init.group(1))) * 1e3
    again = min(b for b in begun if b > kill.at)
    fig.add("restart_ms", (again - kill.at) * 1e3, "ms", f"<={own + 1000:.0f}", f"its own start takes {own:.0f} ms")


def first_step(bench, fig):
    folder = bench.folder(f"{bench.build}/examples/trainer-c", command="./trainer-c", rounds=1, steps=1)
    _, _, logs = bench.run(folder)
    init = re.search(r"^(.{23}) info  agent: task=\d+ attempt=1 init", logs["w0"], re.M)
    done = re.search(r"^(.{23}) info  agent: done task=\d+ train", logs["w0"], re.M)
    fig.add("import_to_first_step_s", stamp(done.group(1)) - stamp(init.group(1)), "s", "<=1",
            "from its start to the end of a phase of one step")


def exact(bench, fig):
    """Trains on three workers, one of which is killed every 10 s and started again at once, for a minute at most."""
    from swarm import running
    from test_external import count_samples, miscounted
    names, killed = ("w0", "w1", "w2"), []
    with running(bench.scratch / "exact-swarm") as s:
        for name in names:
            s.worker(name, "--allow-trainers")

        def kill(told):
            while len(killed) < 6 and s.job(told)["state"] not in ("done", "failed"):
                time.sleep(10)
                name = names[len(killed) % len(names)]
                s.kill(name)
                s.worker(name, "--allow-trainers")
                killed.append(name)
        seen, epochs = count_samples(s, bench.scratch / "exact", texts=2000, rounds=8, steps=90, step_s=0.04, disturb=kill)
    fig.add("exact_samples", miscounted(seen, epochs), "samples", "<=0",
            f"{int(seen.sum())} counted by the trainers, {sum(e['done'] for e in epochs)} by the ledger; {len(killed)} kills")


def overhead(bench, fig):
    out = subprocess.run([f"{bench.build}/release/tests/bench/worker/external/bench_external", str(bench.scratch)],
                         capture_output=True, text=True, timeout=600, check=True).stdout
    found = dict(line.split() for line in out.splitlines())
    fig.add("phase_overhead_ms_per_100M", float(found["e3m0_copies"]), "copies", "<=12",
            f"{found['e3m0_ms']} ms, at worst {found['e3m0_worst_copies']} copies; a copy {found['copy_ms']} ms; f32 wires {found['f32_copies']} copies")


def lines(bench, fig):
    folder = f"{HERE}/../../examples/trainer-gpt"
    a, b = (open(f"{folder}/{name}", encoding="utf-8").read().splitlines() for name in ("plain.py", "train.py"))
    changed = [x for x in difflib.ndiff(a, b) if x[:2] in ("+ ", "- ")]
    fig.add("lines_changed", len(changed), "lines", "<=30", "added and removed")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--build", default="build")
    args.add_argument("--out", default="build/figures/trainers.json")
    args.add_argument("--only")
    a = args.parse_args()
    os.environ["SKERRY_BIN"], os.environ["SKERRY_BUILD"] = f"{os.path.abspath(a.build)}/bin", os.path.abspath(a.build)
    sys.path[:0] = [f"{HERE}/../integration", f"{os.path.abspath(a.build)}/python"]
    fig = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(a.build, scratch)
        for measure in (plain, diloco, steps, lora, restart, first_step, exact, overhead, lines):
            if a.only in (None, measure.__name__):
                measure(bench, fig)
    fig.write(a.out, keep=a.only is not None)
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
