"""The common parts of the experiments: resumable runs, figures, a table, a plot.

An experiment is a set of runs of `skerry run`, each in a folder of its own below
build/quality/NAME.  A run that has ended with the same job file and options is not
run again, so an experiment that was interrupted goes on where it was."""
import argparse
import hashlib
import html
import json
import math
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
from processor import processor  # noqa: E402


def arguments(description, data=None):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--build", default="build")
    p.add_argument("--data", required=True, help=data)
    p.add_argument("--scale", type=float, default=1.0, help="multiplies the length of every run")
    p.add_argument("--only", action="append", default=[], help="names of runs; others must be there already, or stay out")
    return p


class Lab:
    def __init__(self, name, args):
        self.name, self.args = name, args
        self.out = os.path.join(args.build, "quality", name)
        os.makedirs(self.out, exist_ok=True)
        self.rows, self.hours = [], 0.0

    def steps(self, n):
        return max(2, round(n * self.args.scale))

    def run(self, name, job, workers, *options):
        """Trains; returns the run's report, or None if --only leaves it out."""
        folder = os.path.join(self.out, name)
        mark = os.path.join(folder, "ended.json")
        key = hashlib.sha256(json.dumps([job, workers, options]).encode()).hexdigest()
        if os.path.exists(mark):
            ended = json.load(open(mark, encoding="utf-8"))
            if ended["key"] == key:
                self.hours += ended["seconds"] / 3600
                return Report(folder, ended)
        if self.args.only and name not in self.args.only:
            return None
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(job)
        print(f"== {self.name}: {name}", flush=True)
        begun = time.monotonic()
        with open(os.path.join(folder, "log.txt"), "wb") as log:
            done = subprocess.run([f"{self.args.build}/bin/skerry", "run", path, "--workers", str(workers), "--out", folder,
                                   *options], stderr=log, stdout=log, check=False)
        if done.returncode != 0:
            tail = open(os.path.join(folder, "log.txt"), encoding="utf-8", errors="replace").read()[-600:]
            sys.exit(f"{self.name}: run '{name}' ended with {done.returncode}:\n{tail}")
        ended = {"key": key, "seconds": time.monotonic() - begun, "commit": commit()}
        with open(mark, "w", encoding="utf-8") as f:
            json.dump(ended, f)
        self.hours += ended["seconds"] / 3600
        return Report(folder, ended)

    def figure(self, name, value, unit, bound, holds, **more):
        row = {"name": name, "value": value, "unit": unit, "bound": bound, "holds": bool(holds), **more, **processor()}
        folder = os.path.join(self.args.build, "figures")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "quality.json")
        rows = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else []
        rows = [r for r in rows if r["name"] != name] + [row]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
        print(f"{name}: {value:.4g} {unit} ({bound}) {'holds' if holds else 'MISSED'}")

    def table(self, head, rows):
        """Prints the table and keeps it as Markdown."""
        text = [[cell(c) for c in r] for r in [head, *rows]]
        wide = [max(len(r[i]) for r in text) for i in range(len(head))]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, wide)) + " |" for r in text]
        lines.insert(1, "| " + " | ".join("-" * w for w in wide) + " |")
        done = "\n".join(lines)
        print(done + f"\n({self.hours:.2f} h of runs, commit {commit()})", flush=True)
        with open(os.path.join(self.out, "table.md"), "w", encoding="utf-8") as f:
            f.write(done + f"\n\n{self.hours:.2f} h of runs, commit {commit()}\n")

    def plot(self, curves, x, y):
        """Draws curves, {name: [(x, y), ...]}, into plot.svg; a curve of a single point is a dot."""
        with open(os.path.join(self.out, "plot.svg"), "w", encoding="utf-8") as f:
            f.write(svg(curves, x, y))


class Report:
    """The results of a run."""

    def __init__(self, folder, ended):
        self.folder, self.ended = folder, ended
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as f:
            self.json = json.load(f)
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
            self.metrics = [json.loads(line) for line in f]

    def figure(self, name, path=None):
        """The newest figure of this name."""
        found = [r for r in self.json["job"]["figures"] if r["name"] == name and (path is None or r["path"] == path)]
        if not found:
            raise KeyError(f"{self.folder}: no figure '{name}'; there are {sorted({r['name'] for r in self.json['job']['figures']})}")
        return found[-1]["value"]

    @property
    def eval_loss(self):
        return self.json["job"]["eval_loss"]

    @property
    def bits_per_byte(self):
        return self.json["job"]["bits_per_byte"]

    def curve(self):
        """The points (samples, held-out loss) over the training."""
        samples, points = 0, {}
        for r in self.metrics:
            if r["kind"] == "round":
                samples += r["samples"]
                if r.get("eval_loss") is not None:
                    points[samples] = r["eval_loss"]
        return sorted(points.items())


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() or "unknown"


def cell(c):
    return "" if c is None else f"{c:.4f}" if isinstance(c, float) else str(c)


COLOURS = ["#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#666666", "#b82e2e", "#dd4477", "#66aa00"]


def svg(curves, x, y):
    """A line chart, without any library."""
    points = [p for c in curves.values() for p in c if all(map(math.isfinite, p))]
    if not points:
        return "<svg xmlns='http://www.w3.org/2000/svg'/>"
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    x1, y1 = x1 + (x1 == x0), y1 + (y1 == y0)
    dx, dy = (x1 - x0) / 50, (y1 - y0) / 50
    x0, x1, y0, y1 = x0 - dx, x1 + dx, y0 - dy, y1 + dy

    def at(p):
        return f"{70 + 560 * (p[0] - x0) / (x1 - x0):.1f},{360 - 320 * (p[1] - y0) / (y1 - y0):.1f}"

    out = ["<svg xmlns='http://www.w3.org/2000/svg' width='860' height='420' font-family='sans-serif' font-size='12'>",
           "<rect width='860' height='420' fill='white'/>",
           "<path d='M70 40V360H630' fill='none' stroke='#888'/>",
           f"<text x='350' y='400' text-anchor='middle'>{html.escape(x)}</text>",
           f"<text x='16' y='200' transform='rotate(-90 16 200)' text-anchor='middle'>{html.escape(y)}</text>"]
    for i in range(5):
        v, w = y0 + (y1 - y0) * i / 4, x0 + (x1 - x0) * i / 4
        out.append(f"<text x='64' y='{364 - 80 * i}' text-anchor='end'>{v:.4g}</text>")
        out.append(f"<text x='{70 + 140 * i}' y='378' text-anchor='middle'>{w:.4g}</text>")
    for i, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        if len(curve) == 1:
            cx, cy = at(curve[0]).split(",")
            out.append(f"<circle cx='{cx}' cy='{cy}' r='5' fill='{colour}'/>")
        out.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{' '.join(map(at, curve))}'/>")
        out.append(f"<rect x='646' y='{42 + 20 * i}' width='12' height='12' fill='{colour}'/>")
        out.append(f"<text x='664' y='{53 + 20 * i}'>{html.escape(name)}</text>")
    return "\n".join(out + ["</svg>"])
