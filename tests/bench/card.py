"""Figures about a GPU that need none: prints a table, writes build/figures/card.json.

    card.py --build build --torch PYTHON [--emulator FILE --bundle FILE] --out build/figures/card.json

Without CUDA there is neither an emulated card nor a bundle, and their figures are not measured."""
import argparse
import json
import os
import re
import subprocess
import sys

from bench import Figures

HERE = os.path.dirname(os.path.abspath(__file__))


def run(argv, seconds, **env):
    """What it prints; None, with the reason told, if it fails: its figures are not measured, and the others are."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False, env={**os.environ, **env})
    except (OSError, subprocess.TimeoutExpired) as e:
        print(f"{argv[0]}: {e}", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{argv[0]}: exit {done.returncode}", file=sys.stderr)
        return None
    return done.stdout


def memory(fig, build, python):
    """Compares the memory that the planner predicts with the memory that PyTorch keeps."""
    ours = json.loads(run([f"{build}/release/tests/bench/worker/bench_card"], 60) or "null")
    theirs = json.loads(run([python, f"{HERE}/torch_saved.py"], 900) or "null")
    for name, key, bound in (("xl_bytes_per_row", "bytes_per_row", "<=32"), ("xl_bytes_per_row_lean", "lean_bytes_per_row", "<=24")):
        fig.add(name, ours and ours[key] / ours["channels"], "C bytes", bound,
                f"and {ours['statistics_per_row']} bytes of statistics; PyTorch {theirs['row_of_block']:.1f}" if ours and theirs else "")
    for batch, bound in (("128", "<=0.95"), ("256", "<=0.8")):
        a, b = ours and ours["need"][batch], theirs and theirs["bytes"][batch]
        fig.add("xl_memory_vs_torch" + ("" if batch == "128" else f"_{batch}"), a / b if a and b else None, "x", bound,
                f"{a / 2**30:.1f} against {b / 2**30:.1f} GiB" if a and b else "")


def launches(fig, emulator):
    folder = os.path.dirname(emulator or "")
    told = run([emulator], 900, SKERRY_CUDA_PROBE="1", LD_LIBRARY_PATH=folder) if emulator else None
    found = re.search(r"\[kernels_per_block\] (\d+), (.*)", told or "")
    fig.add("kernels_per_block", int(found.group(1)) if found else None, "launches", "<=24", found.group(2) if found else "no CUDA")


def first_run(fig, build, bundle):
    size = os.path.getsize(bundle) / 2**20 if bundle else None
    fig.add("gpu_bundle_mib", size, "MiB", "<=45", "CUDA_ARCHS=90" if bundle else "no CUDA")
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{HERE}/../integration/test_gpu_run.py"], 3600,
               SKERRY_BUILD=build, SKERRY_BIN=f"{build}/bin")
    passed = re.search(r"(\d+) passed", done or "")
    fig.add("gpu_dry_run", int(passed.group(1)) if passed else None, "tests", ">=3", "a session's calls, and five kills")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    args.add_argument("--build", default="build")
    args.add_argument("--torch", required=True, help="a Python with PyTorch")
    args.add_argument("--emulator", help="test_step of the emulated card")
    args.add_argument("--bundle", help="of make gpu-bundle CUDA_ARCHS=90")
    args.add_argument("--out", default="build/figures/card.json")
    a = args.parse_args()
    fig = Figures()
    memory(fig, a.build, a.torch)
    launches(fig, a.emulator)
    first_run(fig, a.build, a.bundle)
    fig.write(a.out)
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
