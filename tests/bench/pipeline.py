"""Figures of pipelines, simulated, on timed devices and on two CPU devices: print a table, write build/figures/pipeline.json.

    pipeline.py --build build --out build/figures/pipeline.json"""
import argparse
import sys

from bench import Figures, measured_by

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
    "pipeline_auto": ("x, chosen over the faster", "<=1.03"),
}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--build", default="build")
    args.add_argument("--out", default="build/figures/pipeline.json")
    a = args.parse_args()
    fig = Figures()
    measured_by(fig, [f"{a.build}/release/tests/bench/worker/pipe/bench_pipeline"], BOUNDS)
    measured_by(fig, [f"{a.build}/release/tests/bench/worker/bench_timed"], TIMED)
    measured_by(fig, [f"{a.build}/release/tests/bench/worker/bench_island"], MEASURED)
    fig.write(a.out)
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
