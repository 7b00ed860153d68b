#!/usr/bin/env python3
"""The table at the end of tests/gpu/run.sh, and build/figures/gpu.json.

    figures.py --parts build/figures/gpu --out build/figures/gpu.json [--dry-run]

Reads what the steps left in the folder (a step that did not run left nothing, one that was cut off left
its beginning): steps.tsv, ops.json of check_ops, xl.jsonl and small.jsonl of train_bench, xl-torch.jsonl
and small-torch.jsonl of torch_train.py, swarm.jsonl.  Each figure has `name`, `value` (null: not
measured, and the note says why), `unit`, `bound` (null: for information) and `holds`.
Exit 0: every step passed and every bound holds.  In a dry run values are not figures: all are "not
measured", and only the steps count.
"""
import argparse
import json
import os
import sys

LAUNCH_BOUND = 64  # images a step of the small model


def rows(path):
    """The objects of a file of JSON lines, or of an array with one a line; a cut line is left out."""
    out = []
    if os.path.exists(path):
        for line in open(path, encoding="utf-8", errors="replace"):
            try:
                row = json.loads(line.strip().rstrip(","))
            except ValueError:
                continue
            if isinstance(row, dict):
                out.append(row)
    return out


class Figures:
    def __init__(self, dry):
        self.dry, self.rows, self.notes = dry, [], []

    def add(self, name, value, unit, bound=None, note=""):
        """bound: ">=0.85" or "<=1.2"."""
        if self.dry:
            note = "dry run" if value is None else f"dry run: {value:.4g}"
            value = None
        holds = None
        if bound and not self.dry:
            limit = float(bound[2:])
            holds = value is not None and (value >= limit if bound[0] == ">" else value <= limit)
        self.rows.append({"name": name, "value": value, "unit": unit, "bound": bound, "holds": holds})
        self.notes.append(note if value is not None else f"not measured: {note or 'no result'}")

    def print(self):
        for row, note in zip(self.rows, self.notes):
            v = row["value"]
            value = "-" if v is None else f"{v:.0f}" if abs(v) >= 1000 else f"{v:.4g}"
            verdict = {True: "holds", False: "MISSED", None: ""}[row["holds"]]
            print(f"{row['name']:58} {value:>10} {row['unit']:10} {row['bound'] or '':>8}  {verdict:7}{note}")


class Side:
    """The batch sizes that one program measured."""

    def __init__(self, folder, name, missing):
        found = rows(os.path.join(folder, name + ".jsonl"))
        self.head = next((r for r in found if "peak" in r), {})
        self.rows = [r for r in found if "images_per_s" in r]
        self.errors = [r for r in found if "error" in r]
        self.missing = missing
        if self.errors and not self.rows:
            self.missing = self.errors[0]["error"]

    def best(self, **want):
        fit = [r for r in self.rows if all(r.get(k) == v for k, v in want.items())]
        return max(fit, key=lambda r: r["images_per_s"], default=None)

    def plain(self):
        """Without replaying CUDA graphs: torch.compile as it is by default."""
        side = Side.__new__(Side)
        side.__dict__.update(self.__dict__, rows=[r for r in self.rows if r.get("mode") != "graphs"])
        return side


def ratio(ours, theirs, key="images_per_s"):
    return ours[key] / theirs[key] if ours and theirs and ours.get(key) and theirs.get(key) else None


def missing(*sides):
    return "; ".join(dict.fromkeys(s.missing for s in sides if not s.rows))


def xl(fig, folder, ours, theirs):
    best, other = ours.best(), theirs.plain().best()
    note = f"{best['images_per_s']:.0f} (batch {best['batch']})" if best else ""
    if best and other:
        note += f" against {other['images_per_s']:.0f} images/s (batch {other['batch']}, {other['mode']})"
    fig.add("DiT-XL/2 256 tokens bf16: images/s, PyTorch 1", ratio(best, other), "x", ">=1.15",
            note if best and other else missing(ours, theirs))
    large = [1e12 * r["value"] for r in rows(os.path.join(folder, "ops.json")) if r["name"] == "product 8192 8192 8192"]
    peak = max([s.head.get("peak") or 0 for s in (ours, theirs)] + large)
    fig.add("DiT-XL/2: model FLOP utilisation", best["flops"] / peak if best and peak else None, "of peak",
            ">=0.6", f"of {peak / 1e12:.0f} TFLOP/s measured here" if best else ours.missing)
    common = [r["batch"] for r in ours.rows if theirs.best(batch=r["batch"])]
    a, b = (s.best(batch=max(common)) if common else None for s in (ours, theirs.plain()))
    fig.add("DiT-XL/2: memory at equal batch, PyTorch 1", ratio(a, b, "bytes"), "x", "<=0.8",
            f"batch {a['batch']}: {a['bytes'] / 2**30:.1f} against {b['bytes'] / 2**30:.1f} GiB" if ratio(a, b, "bytes")
            else missing(ours, theirs) or "no common batch, or no memory figure")
    fig.add("DiT-XL/2: host processor while training", best["host_share"] if best else None, "of a core", "<=0.1",
            "beside data loading" if best else ours.missing)
    for row in ours.rows:
        fig.add(f"DiT-XL/2 batch {row['batch']}", row["images_per_s"], "images/s", None, f"{row['bytes'] / 2**30:.1f} GiB")
    for row in theirs.rows:
        fig.add(f"  PyTorch {row['mode']} batch {row['batch']}", row["images_per_s"], "images/s", None,
                f"{(row['bytes'] or 0) / 2**30:.1f} GiB")


def small(fig, ours, theirs):
    a, b = ours.best(batch=LAUNCH_BOUND), theirs.plain().best(batch=LAUNCH_BOUND)
    fig.add(f"DiT 384x12 64 tokens, batch {LAUNCH_BOUND}: images/s, PyTorch 1", ratio(a, b), "x", ">=1.5",
            f"{a['images_per_s']:.0f} against {b['images_per_s']:.0f} images/s" if a and b else missing(ours, theirs))
    for row in ours.rows:
        fig.add(f"DiT 384x12 batch {row['batch']}", row["images_per_s"], "images/s", None,
                f"host {100 * row['host_share']:.0f} % of a core")
    for row in theirs.rows:
        fig.add(f"  PyTorch {row['mode']} batch {row['batch']}", row["images_per_s"], "images/s", None,
                f"host {100 * row['host_share']:.0f} % of a core")


# What the benchmark of operations must have said, by a word of its name.
WANTED = [("AdamW", ">=0.85"), ("LayerNorm", ">=0.85"), ("quantise to", ">=0.85"), ("quantise 675 M", "<=1.2")]


def operations(fig, folder, why):
    found = rows(os.path.join(folder, "ops.json"))
    for row in found:
        bound = row.get("bound")
        if bound is not None and not isinstance(bound, str):  # a number: which side holds says its sense
            bound = f"{'>=' if (row['value'] >= bound) == row['holds'] else '<='}{bound:g}"
        fig.add(row["name"], row["value"], row["unit"], bound)
    for word, bound in WANTED:
        if not any(word in row["name"] and row.get("bound") is not None for row in found):
            fig.add(f"{word} (operations)", None, "x", bound, why)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--parts", default="build/figures/gpu")
    ap.add_argument("--out", default="build/figures/gpu.json")
    ap.add_argument("--torch", default="", help="why there is no PyTorch, if so")
    ap.add_argument("--dry-run", action="store_true")
    args = ap.parse_args()
    steps = []
    path = os.path.join(args.parts, "steps.tsv")
    if os.path.exists(path):
        steps = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")]
    fig = Figures(args.dry_run)
    no_torch = args.torch or "PyTorch's side did not run"
    xl(fig, args.parts, Side(args.parts, "xl", "the training step did not run"), Side(args.parts, "xl-torch", no_torch))
    small(fig, Side(args.parts, "small", "the training step did not run"), Side(args.parts, "small-torch", no_torch))
    operations(fig, args.parts, "the benchmark of operations did not get there")
    start = next((r["start_s"] for r in rows(os.path.join(args.parts, "swarm.jsonl")) if "start_s" in r), None)
    fig.add("workerd start to first step, warm cache", start, "s", "<=5", "" if start else "the swarm did not get there")
    with open(args.out + ".new", "w", encoding="utf-8") as f:
        json.dump(fig.rows, f, indent=1)
        f.write("\n")
    os.replace(args.out + ".new", args.out)

    print("\nsteps")
    for name, result, seconds in steps:
        print(f"{name:58} {seconds:>8} s  {result}")
    print("\nfigures")
    fig.print()
    bad = [s[0] for s in steps if s[1] != "ok" and not s[1].startswith("not run")]
    missed = [r["name"] for r in fig.rows if r["holds"] is False]
    skipped = [s[0] for s in steps if s[1].startswith("not run")]
    print(f"\n{len(steps) - len(bad) - len(skipped)} of {len(steps)} steps passed, {len(skipped)} not run; "
          f"{sum(r['holds'] is True for r in fig.rows)} of {sum(r['bound'] is not None for r in fig.rows)} bounds hold; {args.out}")
    return 1 if bad or missed or (skipped and not args.dry_run) else 0


if __name__ == "__main__":
    sys.exit(main())
