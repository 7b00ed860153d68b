"""Measure every figure, print a table, write build/figures/bench.json.

    bench.py --build build --torch PYTHON [--only NAME ...]

Each figure is measured in this run; comparisons alternate the two sides, so
that a noisy machine is noisy for both.  Each part has a time limit, so that all of
them end within 25 minutes on any machine: a comparison goes with the alternations
that it has by then.  A figure that could not be measured is in the table with its
reason and does not hold."""
import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
import dataset  # noqa: E402  (tests/tools/dataset.py: synthetic image folders)
from processor import cpu_has, processor  # noqa: E402

# Who narrows Skerry narrows PyTorch, too.
if os.environ.get("SKERRY_CPU_ISA") == "avx2":
    os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2")

ROUNDS, ROUNDS_LEAST = 8, 3  # alternations of a comparison; with fewer it is none
READY_S, GO_S = 240, 120  # a program that takes longer, until it is ready or for its steps, is ended
CLEAN_S = 60  # after its limit a part ends what it started, and no more


class OverLimit(TimeoutError):
    """The time of a part is used up.  It is an OSError, so that a figure fails with it as with any other reason."""


@contextlib.contextmanager
def limit(seconds):
    """Interrupts its body after so many seconds; the code that started processes ends them."""
    def over(*_):
        signal.alarm(CLEAN_S)  # it may go on with its next figure, or a client's error may have hidden this one
        raise OverLimit(f"not measured within its {seconds} s")
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    except OverLimit as e:
        print(f"bench: {e}", file=sys.stderr)  # while it cleaned up: what was measured is in the table
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Figures:
    def __init__(self):
        self.rows = []

    def add(self, name, value, unit, bound, note=""):
        if value is None:
            holds = False
        elif bound.startswith(">="):
            holds = value >= float(bound[2:])
        else:
            holds = value <= float(bound[2:])
        self.rows = [r for r in self.rows if r["name"] != name]
        self.rows.append({"name": name, "value": value, "unit": unit, "bound": bound, "holds": holds, "note": note, **processor()})
        shown = "not measured" if value is None else f"{value:.4g}"
        print(f"{name:24} {shown:>14} {unit:14} {bound:>10}  {'holds' if holds else 'MISSED':7} {note}",
              flush=True)

    def write(self, path, keep=False):
        """Writes the rows to the file; with keep, when only some were measured, its others stay."""
        rows, names = self.rows, {r["name"] for r in self.rows}
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if keep and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                rows = [r for r in json.load(f) if r["name"] not in names] + rows
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
        os.replace(path + ".new", path)


def measure_within(fig, names, seconds, part):
    """Adds the figures of a part; if it fails or its time is used up, those of these names that it did not add are noted with the reason."""
    before, why = list(fig.rows), f"not measured within its {seconds} s"
    try:
        with limit(seconds):
            part()
            return
    except Exception as e:  # pylint: disable=broad-except
        why = f"not measured: {type(e).__name__}: {e}"[:600]
    added = {r["name"] for r in fig.rows if r not in before}
    for name in names:
        if name not in added:
            fig.add(name, None, "", "", why)


class Peer:
    """A program that answers `go N` with the seconds that N steps took."""

    def __init__(self, argv, env=None):
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, **(env or {})})
        self.ready, self.late = "", False
        while not self.ready.startswith("ready"):
            self.ready = self.answer(READY_S, "ready").strip()

    def end(self):
        self.late = True
        self.p.kill()

    def answer(self, seconds, what):
        """The program's next line; a program that does not print it in time is ended."""
        timer = threading.Timer(seconds, self.end)
        timer.start()
        try:
            line = self.p.stdout.readline()
        except OverLimit:
            self.p.kill()
            self.p.wait()
            raise
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"{self.p.args[0]} was not {what} in {seconds} s" if self.late else
                               f"{self.p.args[0]} ended before it was {what}")
        return line

    def go(self, steps):
        self.p.stdin.write(f"go {steps}\n")
        self.p.stdin.flush()
        return float(self.answer(GO_S, f"through {steps} steps").split()[0])

    def close(self):
        try:
            self.p.stdin.write("quit\n")
            self.p.stdin.close()
            self.p.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.p.kill()
            self.p.wait()


def json_lines(argv, timeout=300):
    out = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def has_bf16():
    """True if the CPU multiplies bf16: else a step of PyTorch takes minutes, and precision: auto is f32 on both sides."""
    return cpu_has("avx512_bf16") or cpu_has("amx_bf16")


def torch_peer(argv):
    """PyTorch's step, the faster of eager and compiled; eager if the process of the compiled one dies."""
    try:
        return Peer([*argv, "--mode", "best"]), ""
    except RuntimeError as e:
        if "ended before" not in str(e):
            raise
        return Peer([*argv, "--mode", "eager"]), "torch.compile ended PyTorch, "


def train_vs_torch(fig, args, dtype, bound, what="train", batch=64, model=()):
    name, instead, cut = f"{what}_{dtype}_vs_torch", "", ""
    if dtype == "bf16" and not has_bf16():
        print(f"{name}: skipped, as this CPU has no bf16; precision: auto takes f32, which {what}_f32_vs_torch compares")
        return
    model = [*model, "--batch", str(batch), "--dtype", dtype, "--threads", "2"]
    ours = theirs = None
    try:
        theirs, alone = torch_peer([args.torch, os.path.join(HERE, "torch_dit.py"), *model])
        instead += alone
        ours = Peer([f"{args.build}/release/tests/bench/worker/bench_train", *model])
        ratios, rates = [], []
        try:
            for _ in range(ROUNDS):
                a, b = ours.go(3), theirs.go(3)
                ratios.append(b / a)
                rates.append((3 * batch / a, 3 * batch / b))
        except OverLimit:
            if len(ratios) < ROUNDS_LEAST:
                raise
            cut = f"{len(ratios)} alternations of {ROUNDS}, as its time was used up, "
        fig.add(name, statistics.median(ratios), "x images/s", bound,
                f"{instead}{cut}{statistics.median(r[0] for r in rates):.1f} against "
                f"{statistics.median(r[1] for r in rates):.1f} images/s; {theirs.ready[6:]}")
    except (OSError, RuntimeError, ValueError) as e:
        fig.add(name, None, "x images/s", bound, str(e))
    finally:
        for peer in (ours, theirs):
            if peer:
                peer.close()


def measured_by(fig, argv, bounds, timeout=600):
    """Figures that a C program prints as JSON lines itself."""
    why = "no answer"
    try:
        found = {row["name"]: row for row in json_lines(argv, timeout)}
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        found, why = {}, str(e)
    for name, (unit, bound) in bounds.items():
        row = found.get(name)
        fig.add(name, row and row["value"], unit, bound, row.get("note", "") if row else why)


JOB = """name: bench
seed: 1
data: {{path: "{data}", image_size: {size}, holdout: 0}}
model: {{patch: {patch}, dim: {dim}, depth: {depth}, heads: {heads}}}
train: {{batch: {batch}, lr: 1e-4, precision: {precision}}}
recipe: {{name: diloco, replicas: {replicas}}}
outer: {{rounds: {rounds}, steps: {steps}}}
wire: {{up: {up}, down: {down}}}
sample: {{count: 1, steps: 1, columns: 1}}
"""


def write_job(folder, **keys):
    values = dict(size=16, patch=4, dim=256, depth=4, heads=4, batch=2, precision="f32", replicas=2,
                  rounds=3, steps=2, up="e3m0", down="e3m0")
    values.update(keys)
    path = os.path.join(folder, "job.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(JOB.format(**values))
    return path


def run_job(args, job, folder, workers, watch):
    """Runs skerry run --json and returns the job's last state; calls watch(pid) while it runs."""
    said, errors = os.path.join(folder, "run.json"), os.path.join(folder, "run.err")
    with open(said, "w", encoding="utf-8") as out, open(errors, "w", encoding="utf-8") as err:
        p = subprocess.Popen([f"{args.build}/bin/skerry", "run", job, "--workers", str(workers), "--out",
                              os.path.join(folder, "out"), "--json"], stdout=out, stderr=err)
        try:
            while p.poll() is None:
                watch(p.pid)
                time.sleep(0.05)
        finally:
            p.kill()  # the daemons end with it
            p.wait()
    if p.returncode != 0:
        raise RuntimeError(f"skerry run ended with {p.returncode}: {open(errors, encoding='utf-8').read()[-600:]}")
    return json.loads(open(said, encoding="utf-8").read().splitlines()[-1])


def socket_bytes(args, folder, codec, rounds):
    """Bytes that two workers moved on the data plane for a whole job, counted at their sockets."""
    daemons = []
    os.makedirs(folder)
    try:
        data = dataset.make(os.path.join(folder, "data"), classes=2, images=64, size=16)
        # 7 M parameters: names and shapes in a blob's header then weigh as little as in real models
        job = write_job(folder, data=data, up=codec, down=codec, rounds=rounds, steps=1, dim=256, depth=6)
        c = start_coordinator(args, folder)
        daemons.append(c)
        for name in ("a", "b"):
            daemons.append(Daemon([f"{args.build}/bin/workerd", "--join", c.worker, "--name", name, "--threads", "1",
                                   "--work-dir", os.path.join(folder, name)], os.path.join(folder, name + ".log")))

        def ask(*what):
            out = subprocess.run([f"{args.build}/bin/skerry", *what, "--json", "--server", c.user],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
            return json.loads(out.splitlines()[-1])

        last = ask("submit", job, "--watch")
        if last["state"] != "done":
            raise RuntimeError(last["reason"])
        # The counters come by heartbeat: read until two readings a heartbeat apart agree.
        seen = None
        while True:
            now = [(w["bytes"]["data"]["up"], w["bytes"]["data"]["down"]) for w in ask("workers")["items"]]
            if now == seen:
                return sum(w[0] for w in now), sum(w[1] for w in now), last["parameters"]
            seen = now
            time.sleep(2.5)
    finally:
        for d in daemons:
            d.kill()


def wire_bytes(fig, args):
    """The cost of a round: the difference of a long and a short job, in which version 0, shards and
    samples cancel, because a job needs them once.  So does the third round, whose phases of one step
    are clipped, since the learning rate grows from round to round: its delta is fetched again."""
    short, long, replicas = 4, 12, 2
    for codec, up, down in (("int8", "<=1.02", None), ("e3m0", "<=0.52", "<=0.52")):
        rates, why = (None, None), ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                a = socket_bytes(args, os.path.join(folder, "short"), codec, short)
                b = socket_bytes(args, os.path.join(folder, "long"), codec, long)
                per = b[2] * replicas * (long - short)
                rates = ((b[0] - a[0]) / per, (b[1] - a[1]) / per)
                why = f"{b[2] / 1e6:.1f} M parameters, at the workers' sockets"
            except (RuntimeError, OSError, KeyError, subprocess.SubprocessError) as e:
                why = str(e)
        fig.add(f"up_bytes_{codec}", rates[0], "B/param/round", up, why)
        if down:
            fig.add(f"down_bytes_{codec}", rates[1], "B/param/round", down, why)


def status_kib(pid, key):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        m = re.search(rf"^{key}:\s+(\d+) kB", f.read(), re.M)
    return int(m.group(1)) if m else 0


def child_named(pid, name):
    try:
        kids = open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8").read().split()
        for kid in kids:
            if open(f"/proc/{kid}/comm", encoding="utf-8").read().strip() == name:
                return int(kid)
    except OSError:
        pass
    return None


class Daemon:
    def __init__(self, argv, log):
        self.log = log
        with open(log, "w", encoding="utf-8") as f:
            self.p = subprocess.Popen(argv, stdout=f, stderr=f)

    def wait_for(self, done, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            got = done()
            if got:
                return got
            if self.p.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(open(self.log, encoding="utf-8").read()[-600:])

    def kill(self, signo=signal.SIGTERM):
        if self.p.poll() is None:
            self.p.send_signal(signo)
            try:
                self.p.wait(10)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()


def start_coordinator(args, folder):
    data = os.path.join(folder, "coordinator")
    d = Daemon([f"{args.build}/bin/coordinatord", "--data-dir", data, "--listen", "127.0.0.1", "--host",
                "127.0.0.1", "--rpc-port", "0", "--http-port", "0"], os.path.join(folder, "coordinatord.log"))
    d.wait_for(lambda: os.path.exists(os.path.join(data, "ports.json")))
    d.user = os.path.join(data, "user.token")
    d.worker = open(os.path.join(data, "worker.token"), encoding="utf-8").read().strip()
    return d


def rss_idle(fig, args):
    with tempfile.TemporaryDirectory() as folder:
        d = None
        try:
            d = start_coordinator(args, folder)
            subprocess.run([f"{args.build}/bin/skerry", "status", "--json", "--server", d.user],
                           stdout=subprocess.DEVNULL, check=True)
            time.sleep(1)  # let the start settle: idle is what is measured
            fig.add("rss_idle_mib", status_kib(d.p.pid, "VmRSS") / 1024, "MiB", "<=16")
        except (RuntimeError, OSError, subprocess.SubprocessError) as e:
            fig.add("rss_idle_mib", None, "MiB", "<=16", str(e))
        finally:
            if d:
                d.kill()


def rss_fold(fig, args):
    """The outer step of eight contributions to one module of 100 M parameters, through real daemons."""
    peak = {"kib": 0, "pid": None}

    def watch(pid):
        peak["pid"] = peak["pid"] or child_named(pid, "coordinatord")
        if peak["pid"]:
            try:
                peak["kib"] = max(peak["kib"], status_kib(peak["pid"], "VmHWM"))
            except OSError:
                pass

    with tempfile.TemporaryDirectory() as folder:
        data = dataset.make(os.path.join(folder, "data"), classes=2, images=16, size=16)
        job = write_job(folder, data=data, dim=768, depth=10, heads=12, batch=1, replicas=8, rounds=1, steps=1)
        try:
            last = run_job(args, job, folder, 1, watch)
            fig.add("rss_fold_mib", peak["kib"] / 1024, "MiB", "<=64",
                    f"peak over the whole run, {last['parameters'] / 1e6:.0f} M parameters")
        except (RuntimeError, OSError, KeyError) as e:
            fig.add("rss_fold_mib", None, "MiB", "<=64", str(e))


def start_to_step(fig, args):
    """The time to the first step of a worker that is started again on its warm cache, by its log."""
    with tempfile.TemporaryDirectory() as folder:
        data = dataset.make(os.path.join(folder, "data"), classes=2, images=256, size=16)
        job = write_job(folder, data=data, replicas=1, rounds=1000, steps=50, batch=8)
        found, daemons = [], []
        try:
            c = start_coordinator(args, folder)
            daemons.append(c)
            subprocess.run([f"{args.build}/bin/skerry", "submit", job, "--server", c.user],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            for i in range(4):
                w = Daemon([f"{args.build}/bin/workerd", "--join", c.worker, "--work-dir",
                            os.path.join(folder, "work"), "--threads", "2"],
                           os.path.join(folder, f"worker{i}.log"))
                daemons.append(w)
                first = w.wait_for(lambda w=w: re.search(r"first step after ([0-9.]+) ?s", open(w.log).read()))
                if i > 0:
                    found.append(float(first.group(1)))
                w.kill()
            fig.add("start_to_step_s", statistics.median(found), "s", "<=2")
        except (RuntimeError, OSError, subprocess.SubprocessError) as e:
            fig.add("start_to_step_s", None, "s", "<=2", str(e))
        finally:
            for d in daemons:
                d.kill()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--torch", default=os.path.expanduser("~/.cache/skerry/references/bin/python"))
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--out", default="build/figures/bench.json")
    args = p.parse_args()
    bench = f"{args.build}/release/tests/bench"
    fig = Figures()
    wide = cpu_has("avx512f")
    parts = {  # name: (its limit in seconds, what measures it)
        "train_bf16_vs_torch": (360, lambda: train_vs_torch(fig, args, "bf16", ">=1.5")),
        "train_f32_vs_torch": (360, lambda: train_vs_torch(fig, args, "f32", ">=1.4" if wide else ">=1.2")),
        "matmul_share": (200, lambda: measured_by(fig, [f"{bench}/worker/bench_train", "--matmul-share",
                                                        "--dtype", "bf16" if has_bf16() else "f32", "--threads", "2"],
                                                  {"matmul_share": ("of step time", ">=0.65")})),
        "wire": (180, lambda: wire_bytes(fig, args)),
        "rss_idle_mib": (30, lambda: rss_idle(fig, args)),
        "rss_fold_mib": (190, lambda: rss_fold(fig, args)),
        "outer_bandwidth_share": (90, lambda: measured_by(fig, [f"{bench}/common/outer/bench_outer"],
                                                           {"outer_bandwidth_share": ("of copy", ">=0.6" if wide else ">=0.5")})),
        "start_to_step_s": (60, lambda: start_to_step(fig, args)),
        "rpc_per_s": (30, lambda: measured_by(fig, [f"{bench}/common/net/bench_rpc"], {"rpc_per_s": ("1/s", ">=30000")})),
    }
    unknown = [name for name in args.only if name not in parts]
    if unknown:
        sys.exit(f"bench: no figure '{unknown[0]}'; there are {', '.join(parts)}")
    begun = time.monotonic()
    for name, (seconds, measure) in parts.items():
        if not args.only or name in args.only:
            with limit(seconds):
                measure()
            fig.write(args.out, keep=bool(args.only))
    if not args.only:
        fig.add("bench_minutes", (time.monotonic() - begun) / 60, "min", "<=25")
        fig.write(args.out)
    summary(fig, args.out)


def summary(fig, out):
    for row in fig.rows:
        if row["value"] is None:
            print(f"not measured: {row['name']}: {row['note']}")
    missed = [row["name"] for row in fig.rows if not row["holds"]]
    print(f"\n{len(fig.rows) - len(missed)} of {len(fig.rows)} figures hold; {out}")


if __name__ == "__main__":
    main()
