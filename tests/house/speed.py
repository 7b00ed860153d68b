"""Compares the speeds of two builds.

    speed.py --old build/house/COMMIT/build --new build [--only NAME ...] [--out build/figures/speed.json]
    speed.py --commit a1f3d3e --new build     builds the old side itself, under build/house/

What `make bench` measures of our own programs, in small: old and new alternately, in changing order, and the median of
the ratios (above 1: the new one is slower).  Two clocks run: what the program says of the wall's, and the processor
time of its process, which others on the machine disturb less and waiting does not show in.  The one whose ratios
scatter less decides (for the start the wall's), and the row names it: `yes` within 2 %; `noise` beyond, but a quarter
of the ratios lies on the other side of 1; else `NO`.  Five minutes on two quiet cores."""
import argparse
import contextlib
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

import jobs
from daemons import Daemons, build_commit, wait_for

TURNS, LIMIT_S, WITHIN = 12, 300, 0.02
START_TO_STEP = "start_to_step"  # waiting is what this is about
START = jobs.DILOCO.replace("replicas: 2", "replicas: 1") % (1000, 50)


def number(pattern):
    return lambda text: float(re.search(pattern, text).group(1))


def mean_ms(text):
    return math.exp(statistics.mean(math.log(float(ms)) for ms in re.findall(r"([0-9.]+) ms", text)))


STEP = number(r"([0-9.]+) ms a step")
# name: program, arguments, runs a turn, what its output says as a cost
PROGRAMS = {
    "train_step_f32": ("bench_train", "--dtype f32 --batch 8 --profile 4", 1, STEP),
    "llama_step_f32": ("bench_llama", "--dtype f32 --batch 4 --profile 4", 1, STEP),
    "operations": ("bench_ops", "2 16 other", 2, mean_ms),
    "outer_bandwidth": ("bench_outer", "--params 8000000 --no-files", 1, lambda t: 1 / number(r'share", "value": ([0-9.]+)')(t)),
    "rpc": ("bench_rpc", "", 3, lambda t: 1 / number(r'value":([0-9.]+)')(t)),
}


def find(build, name):
    """The path of a program of tests/bench, in any of its folders."""
    for folder, _, files in os.walk(os.path.join(build, "release/tests/bench")):
        if name in files:
            return os.path.join(folder, name)
    raise RuntimeError(f"{build} has no {name}: make bench builds it")


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def program(build, name):
    """Returns a function that measures (wall-clock time, processor time) of one turn."""
    binary, flags, runs, cost = PROGRAMS[name]
    argv = [find(build, binary), *flags.split()]

    def turn():
        before, said = cpu_s(), []
        for _ in range(runs):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                raise RuntimeError(f"{binary}: {done.stderr[-300:]}")
            said.append(cost(done.stdout))
        return statistics.mean(said), cpu_s() - before
    return turn


def first_step(build, folder, closing):
    """The time to the first step of a worker that starts on its warm cache, by its log."""
    d = closing.enter_context(Daemons(os.path.join(build, "bin"), folder))
    d.coordinator()
    d.submit(jobs.write(d.path("job"), [START], 1)[0])
    said = re.compile(r"first step after ([0-9.]+) ?s")

    def turn():
        before, known = cpu_s(), len(said.findall(d.log("worker"))) if os.path.exists(d.path("worker.log")) else 0
        d.worker(threads=2)
        found = wait_for(lambda: said.findall(d.log("worker"))[known:], LIMIT_S, "the first step")
        d.stop("worker")
        return float(found[0]), cpu_s() - before
    turn()  # fills the cache
    return turn


def compare(old, new):
    """The ratios of the new build's times to the old one's, by both clocks, over all turns."""
    wall, cpu = [], []
    for i in range(TURNS):
        sides = [old, new] if i % 2 else [new, old]
        took = {side: side() for side in sides}
        wall.append(took[new][0] / took[old][0])
        cpu.append(took[new][1] / took[old][1])
    return wall, cpu


def report(name, wall, cpu):
    clocks = {"wall": statistics.quantiles(wall, n=4), "cpu": statistics.quantiles(cpu, n=4)}
    clock = "wall" if name == START_TO_STEP else min(clocks, key=lambda c: clocks[c][2] - clocks[c][0])
    low, ratio, high = clocks[clock]
    holds = "yes" if abs(ratio - 1) <= WITHIN else "noise" if low <= 1 <= high else "NO"
    print(f"{name:18} {ratio:6.3f} ({low:.3f} to {high:.3f}) by {clock:4}   wall {clocks['wall'][1]:6.3f}   "
          f"cpu {clocks['cpu'][1]:6.3f}   within 2 %: {holds}", flush=True)
    return {"name": name, "value": ratio, "unit": "new / old", "bound": "within 0.02 of 1", "holds": holds == "yes",
            "said": holds, "clock": clock, "wall": wall, "cpu": cpu}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--old", help="build directory of the old programs")
    p.add_argument("--commit", help="the old side is this commit, built under build/house/")
    p.add_argument("--new", default="build")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--out", default="build/figures/speed.json")
    args = p.parse_args()
    if bool(args.old) == bool(args.commit):
        p.error("one of --old and --commit")
    names = [*PROGRAMS, START_TO_STEP]
    if unknown := set(args.only) - set(names):
        p.error(f"no figure '{unknown.pop()}'; there are {', '.join(names)}")
    builds = (args.old or build_commit(args.commit, bench=True), args.new)
    rows = []
    for name in args.only or names:
        with contextlib.ExitStack() as closing:
            try:
                if name in PROGRAMS:
                    sides = [program(build, name) for build in builds]
                else:
                    folder = closing.enter_context(tempfile.TemporaryDirectory())
                    sides = [first_step(build, os.path.join(folder, str(i)), closing) for i, build in enumerate(builds)]
                rows.append(report(name, *compare(*sides)))
            except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as e:
                print(f"{name:18} not measured: {e}", flush=True)
                rows.append({"name": name, "value": None, "holds": False, "said": str(e)})
    print(f"{sum(row['holds'] for row in rows)} of {len(rows)} figures within 2 %")
    if not args.only:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
    sys.exit(any(row["said"] not in ("yes", "noise") for row in rows))


if __name__ == "__main__":
    main()
