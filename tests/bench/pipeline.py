"""Figures of pipelines, simulated, on timed devices, on two CPU devices and in a whole job: print a table, write
build/figures/pipeline.json.

    pipeline.py --build build --out build/figures/pipeline.json [--only NAME ...]

NAME is a part: planned, bits, timed, measured, lost, one_stage.  one_stage builds the commit before there were lists of
instructions, under build/house/, and compares the two programs in turns."""
import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "house"))
from bench import Figures, measure_within, measured_by  # noqa: E402
import speed  # noqa: E402  (tests/house/speed.py: two builds in turns)

BEFORE = "90ae421^"  # the last commit whose island had a step of its own
WAITS = 2000  # for a device until it fails: with the throttle of weights_after more than the ten seconds after which a checkpoint is written
EXACT = ("test_pipeline", "test_hybrid", "test_chains")
BOUNDS = {
    "pipeline_planner_wrong": ("instances", "<=0"),
    "pipeline_plan_vs_best": ("x, simulated", "<=1.02"),
    "pipeline_planner_time": ("s of CPU", "<=2"),
    "pipeline_fill_vs_limit": ("x, simulated", ">=0.95"),
    "pipeline_bubbles_left": ("%, simulated", "<=3"),
    "pipeline_split_vs_1f1b": ("x, simulated", ">=1.17"),
    "pipeline_split_filled": ("x, simulated", ">=1"),
    "pipeline_bidirectional": ("x, simulated", ">=1.10"),
}
TIMED = {
    "pipeline_timed_filled": ("x, timed devices", ">=1.30"),
    "pipeline_timed_split": ("x, timed devices", ">=1.17"),
    "pipeline_largest_model": ("x blocks on 8 devices of 1 GiB, over one", ">=3"),
    "pipeline_timed_predicted": ("x measured over predicted, either way, timed devices", "<=1.05"),
    "pipeline_timed_refilled": ("x, filled again after a wrong profile, over a right one's prediction, timed devices", "<=1.05"),
}
MEASURED = {
    "pipeline_predicted": ("x measured over predicted, either way", "<=1.15"),
    "pipeline_chains_predicted": ("x measured over predicted, either way", "<=1.15"),
    "pipeline_auto": ("x, chosen over the faster", "<=1.03"),
}
ADDED = {"planned": BOUNDS, "timed": TIMED, "measured": MEASURED, "lost": ("pipeline_lost_s", "pipeline_lost_bits")}


def exact(fig, build):
    """The tests that compare every bit of weights, moments, averages, losses and norms."""
    wrong, why = 0, []
    for name in EXACT:
        done = subprocess.run([f"{build}/release/tests/unit/worker/train/{name}"], capture_output=True, text=True, timeout=600)
        wrong += done.returncode != 0
        why += [line for line in (done.stdout + done.stderr).splitlines() if "FAILED" in line][:2]
    fig.add("pipeline_bits", wrong, "programs that find a bit that differs", "<=0",
            "; ".join(why) or f"{', '.join(EXACT)}: 2 to 4 stages, every schedule, filled, wide, shared, two chains, 20 steps")


def weights_after(swarm, common, workerd, device_fails):
    """The weights of a job of a two-stage pipeline, and the time from the loss of a device to its next step."""
    swarm.worker("a", "--throttle", "19", device="cpu,cpu", bin=workerd,
                 env={"SKERRY_FAULT_DEVICE": f"{WAITS},lost"} if device_fails else None)
    path = common.write_job(swarm.folder, steps=500, rounds=1, replicas=1, images=800)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "train: {parallel: pipeline, stages: 2, accumulate: 4, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    job, took = swarm.submit(path), None
    if device_fails:
        common.wait_until(lambda: "failed on purpose" in swarm.log("a"), 120, "the device to fail")
        since = time.monotonic()
        common.wait_until(lambda: swarm.log("a").count("first step after") == 2, 60, "the next step")
        took = time.monotonic() - since
        if not ("going on at step" in swarm.log("a") and "is left out" in swarm.log("a")):
            raise RuntimeError(f"the device was not lost in the middle of a phase: {swarm.tail('a')}")
    swarm.wait_job(job, "done")
    out = os.path.join(swarm.folder, "out")
    done = swarm.skerry("export", job, "--out", out, "--raw")
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return took, common.read_safetensors(os.path.join(out, "model.safetensors"))


def lost(fig, swarm_of, common, workerd):
    """One of two devices is lost in the middle of a phase; the other one ends with the bits of a calm run."""
    import numpy as np
    ended = []
    for device_fails in (True, False):
        with swarm_of() as swarm:
            ended.append(weights_after(swarm, common, workerd, device_fails))
    (took, a), (_, b) = ended
    bits = sum(int(np.unpackbits((a[k].view(np.uint8) ^ b[k].view(np.uint8)).reshape(-1)).sum()) for k in b)
    fig.add("pipeline_lost_s", took, "s to the next step, with sanitizers", "<=15", "a worker of two stages goes on with one device")
    fig.add("pipeline_lost_bits", bits, "bits", "<=0", f"of {sum(v.nbytes for v in b.values()) * 8} in the exported weights")


def one_stage(fig, build):
    """The time of a step of one device over that of the commit before lists of instructions."""
    old, worst = speed.build_commit(BEFORE, bench=True), 0
    for name in ("train_step_f32", "llama_step_f32"):
        wall, cpu = speed.compare(speed.program(old, name), speed.program(build, name))
        worst = max(worst, speed.report(name, wall, cpu)["value"])
    fig.add("pipeline_one_stage", worst, "x, new over old", "<=1.02", f"{BEFORE}, {speed.TURNS} alternations, DiT and Llama")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--build", default="build")
    args.add_argument("--out", default="build/figures/pipeline.json")
    args.add_argument("--only", action="append", default=[], choices=["planned", "bits", "timed", "measured", "lost", "one_stage"])
    a = args.parse_args()
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{a.build}/bin")
    sys.path.insert(0, os.path.join(HERE, "..", "integration"))
    import common
    from swarm import Swarm

    @contextlib.contextmanager
    def swarm_of():
        with tempfile.TemporaryDirectory(prefix="skerry-pipeline-") as folder:
            s = Swarm(folder)
            try:
                s.coordinator()
                yield s
            finally:
                s.stop()

    fig, programs = Figures(), f"{a.build}/release/tests/bench/worker"
    parts = {  # its limit in seconds, what measures it
        "planned": (600, lambda: measured_by(fig, [f"{programs}/pipe/bench_pipeline"], BOUNDS)),
        "bits": (600, lambda: exact(fig, a.build)),
        "timed": (600, lambda: measured_by(fig, [f"{programs}/bench_timed"], TIMED)),
        "measured": (600, lambda: measured_by(fig, [f"{programs}/bench_island"], MEASURED)),
        "lost": (600, lambda: lost(fig, swarm_of, common, os.path.abspath(f"{a.build}/clang/asan/bin"))),
        "one_stage": (1800, lambda: one_stage(fig, a.build)),
    }
    for name, (seconds, measure) in parts.items():
        if not a.only or name in a.only:
            measure_within(fig, ADDED.get(name, (f"pipeline_{name}",)), seconds, measure)
    fig.write(a.out, keep=bool(a.only))
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
