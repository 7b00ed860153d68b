#!/usr/bin/env python3
"""Makes the table of the results of tests/gpu/run.sh, and build/figures/gpu.json.

    figures.py --records build/figures/gpu --records DIR [--out build/figures/gpu.json] [--dry-run]

Reads the records GROUP-TIME.log of those folders, the oldest first: of a step that ran several times the
last result counts.  A record that was cut off holds its beginning.  Each figure has `name`, `value` (null:
not measured, and the note says why), `unit`, `bound` (null: for information), `holds` (null: no bound,
or its step never began), and `cpu` and `instructions`, the processor of the newest record that names it.
Exit 0: every step passed and every bound holds, of the steps that began.
In a dry run values are not figures: all are "not measured", and only the steps count.
"""
import argparse
import glob
import json
import os
import re
import sys

LAUNCH_BOUND = 64  # images a step of the small model
BENCH = "operations: bandwidth and arithmetic"
LEAN = "why: DiT-XL/2, GELUs made twice"
SWARM = "a swarm of a card and two CPUs; start to first step"


class Step:
    """One run of a step: the objects of JSON among its lines, and its end."""

    def __init__(self, name, record):
        self.name, self.record = name, record
        self.rows, self.result, self.seconds = [], "FAILED: cut off", "?"

    def read(self, line):
        ended = re.match(r"# ended (\d+) s: (.*)", line)
        if ended:
            self.seconds, self.result = ended.groups()
        elif line.startswith("{"):
            try:
                self.rows.append(json.loads(line))
            except ValueError:  # the line where it was cut off
                pass

    @property
    def skipped(self):
        return self.result.startswith("not run")


def read_record(path):
    """(the record's lines about the machine, its steps, its processor)."""
    about, steps, processor = [], [], {}
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            line = line.rstrip("\n")
            if line.startswith("# about "):
                about.append(line[8:])
            elif line.startswith("# processor {") and line.endswith("}"):
                processor = json.loads(line[12:])
            elif line.startswith("# step "):
                steps.append(Step(line[7:], os.path.basename(path)))
            elif steps:
                steps[-1].read(line)
    return about, steps, processor


class Records:
    def __init__(self, folders):
        paths = [p for folder in folders for p in glob.glob(os.path.join(folder, "**", "*-*.log"), recursive=True)]
        self.about, self.steps, self.processor = [], {}, {"cpu": None, "instructions": None}
        for path in sorted(paths, key=lambda p: p.rsplit("-", 1)[1]):
            about, steps, processor = read_record(path)
            self.processor.update(processor)
            self.about += [a for a in about if a not in self.about]
            for step in steps:
                before = self.steps.get(step.name)
                if not before or before.skipped or not step.skipped:
                    self.steps.pop(step.name, None)  # the order is that of the last results
                    self.steps[step.name] = step

    def rows(self, *names):
        return [row for name in names if name in self.steps for row in self.steps[name].rows]

    def why(self, *names):
        """The reason why these steps have no figure; None: none of them began."""
        found = [self.steps[n] for n in names if n in self.steps]
        return "; ".join(dict.fromkeys(s.result for s in found)) if found else None


class Figures:
    def __init__(self, dry, processor):
        self.dry, self.processor, self.rows, self.notes = dry, processor, [], []

    def add(self, name, value, unit, bound=None, note=""):
        """Adds a figure.  bound: such as ">=0.85" or "<=1.2"; note None: no step that measures the figure began."""
        if self.dry:
            note = "dry run" if value is None else f"dry run: {value:.4g}"
            value = None
        holds = None
        if bound and not self.dry and (value is not None or note is not None):
            limit = float(bound[2:])
            holds = value is not None and (value >= limit if bound[0] == ">" else value <= limit)
        self.rows.append({"name": name, "value": value, "unit": unit, "bound": bound, "holds": holds, **self.processor})
        self.notes.append(note if value is not None else f"not measured: {note or 'no record'}")

    def print(self):
        for row, note in zip(self.rows, self.notes):
            v = row["value"]
            value = "-" if v is None else f"{v:.0f}" if abs(v) >= 1000 else f"{v:.4g}"
            verdict = {True: "holds", False: "MISSED", None: ""}[row["holds"]]
            print(f"{row['name']:58} {value:>10} {row['unit']:10} {row['bound'] or '':>8}  {verdict:7}{note}")


class Side:
    """The batch sizes that one program measured."""

    def __init__(self, records, *steps):
        found = records.rows(*steps)
        self.head = next((r for r in found if "peak" in r), {})
        self.rows = [r for r in found if "images_per_s" in r]
        self.errors = [r for r in found if "error" in r]
        self.missing = records.why(*steps)
        if self.errors and not self.rows:
            self.missing = self.errors[0]["error"]

    def best(self, **want):
        fit = [r for r in self.rows if all(r.get(k) == v for k, v in want.items())]
        return max(fit, key=lambda r: r["images_per_s"], default=None)

    def plain(self):
        """The measurements without replayed CUDA graphs, so with torch.compile's defaults."""
        side = Side.__new__(Side)
        side.__dict__.update(self.__dict__, rows=[r for r in self.rows if r.get("mode") != "graphs"])
        return side


def ratio(ours, theirs, key="images_per_s"):
    return ours[key] / theirs[key] if ours and theirs and ours.get(key) and theirs.get(key) else None


def missing(*sides):
    """None: neither began."""
    why = [s.missing for s in sides if not s.rows and s.missing]
    return "; ".join(dict.fromkeys(why)) if why else None


def xl(fig, records, ours, theirs):
    best, other = ours.best(), theirs.plain().best()
    note = f"{best['images_per_s']:.0f} (batch {best['batch']})" if best else ""
    if best and other:
        note += f" against {other['images_per_s']:.0f} images/s (batch {other['batch']}, {other['mode']})"
    fig.add("DiT-XL/2 256 tokens bf16: images/s, PyTorch 1", ratio(best, other), "x", ">=1.15",
            note if best and other else missing(ours, theirs))
    large = [1e12 * r["value"] for r in records.rows(BENCH) if r["name"] == "product 8192 8192 8192"]
    peak = max([s.head.get("peak") or 0 for s in (ours, theirs)] + large)
    fig.add("DiT-XL/2: model FLOP utilisation", best["flops"] / peak if best and peak else None, "of peak",
            ">=0.6", f"of {peak / 1e12:.0f} TFLOP/s measured here" if best else ours.missing)
    common = [r["batch"] for r in ours.rows if theirs.best(batch=r["batch"])]
    a, b = (s.best(batch=max(common)) if common else None for s in (ours, theirs.plain()))
    fig.add("DiT-XL/2: memory at equal batch, PyTorch 1", ratio(a, b, "bytes"), "x", "<=0.8",
            f"batch {a['batch']}: {a['bytes'] / 2**30:.1f} against {b['bytes'] / 2**30:.1f} GiB" if ratio(a, b, "bytes")
            else "no common batch, or no memory figure" if ours.rows and theirs.rows else missing(ours, theirs))
    fig.add("DiT-XL/2: host processor while training", best["host_share"] if best else None, "of a core", "<=0.1",
            "beside data loading" if best else ours.missing)
    for row in ours.rows:
        fig.add(f"DiT-XL/2 batch {row['batch']}", row["images_per_s"], "images/s", None, f"{row['bytes'] / 2**30:.1f} GiB")
    for row in Side(records, LEAN).rows:
        fig.add(f"  GELUs made twice, batch {row['batch']}", row["images_per_s"], "images/s", None, f"{row['bytes'] / 2**30:.1f} GiB")
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


def operations(fig, records):
    found, why = records.rows(BENCH), records.why(BENCH)
    for row in found:
        fig.add(row["name"], row["value"], row["unit"], row["bound"])
    for word, bound in WANTED:
        if not any(word in row["name"] and row.get("bound") is not None for row in found):
            fig.add(f"{word} (operations)", None, "x", bound, why)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--records", action="append", required=True, help="a folder; several times")
    ap.add_argument("--out", default="build/figures/gpu.json")
    ap.add_argument("--dry-run", action="store_true")
    args = ap.parse_args()
    records = Records(args.records)
    fig = Figures(args.dry_run, records.processor)
    xl(fig, records, Side(records, "DiT-XL/2, 256 tokens"),
       Side(records, "DiT-XL/2 in PyTorch", "DiT-XL/2 in PyTorch, compiled whole"))
    small(fig, Side(records, "DiT 384x12, 64 tokens"), Side(records, "DiT 384x12 in PyTorch"))
    operations(fig, records)
    start = next((r["start_s"] for r in records.rows(SWARM) if "start_s" in r), None)
    fig.add("workerd start to first step, warm cache", start, "s", "<=5", "" if start else records.why(SWARM))
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    with open(args.out + ".new", "w", encoding="utf-8") as f:
        json.dump(fig.rows, f, indent=1)
        f.write("\n")
    os.replace(args.out + ".new", args.out)

    steps = list(records.steps.values())
    print("\n".join(records.about))
    print("\nsteps")
    for step in steps:
        print(f"{step.name:58} {step.seconds:>8} s  {step.result}")
    print("\nfigures")
    fig.print()
    bad = [s for s in steps if s.result != "ok" and not s.skipped]
    missed = [r["name"] for r in fig.rows if r["holds"] is False]
    skipped = [s for s in steps if s.skipped]
    print(f"\n{len(steps) - len(bad) - len(skipped)} of {len(steps)} steps passed, {len(skipped)} not run; "
          f"{sum(r['holds'] is True for r in fig.rows)} of {sum(r['bound'] is not None for r in fig.rows)} bounds hold; {args.out}")
    return 1 if bad or missed or (skipped and not args.dry_run) else 0


if __name__ == "__main__":
    sys.exit(main())
