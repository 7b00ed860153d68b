"""The cost of a coordinator with thousands of connected workers: prints a table, writes build/figures/load.json.

    load.py --build build --workers 2000 [--seconds 30]

A real coordinatord on loopback, over TLS.  The workers are one process (fleet.c): idle at first, then each with a phase
and points of its loss curve, while a thread asks for the status once a second.  Both sides share the machine's cores, so
that times of answers include the fleet's work; the share of a core counts only the coordinator."""
import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("bench", "integration"):
    sys.path.insert(0, os.path.join(HERE, "..", folder))

REPLICAS_MAX = 256  # of a job; more workers get more jobs
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid):
    return int(open(f"/proc/{pid}/statm", encoding="utf-8").read().split()[1]) * PAGE


def fit(workers):
    """The number of workers that the limit of open files allows; both sides need a file for each."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = workers if hard == resource.RLIM_INFINITY else min(workers, hard - 512)
    if most < workers:
        print(f"{hard} open files carry {most} workers, not {workers}: raise the hard limit (ulimit -Hn) for more")
    return most


def give_work(swarm, common, workers):
    """Submits jobs with a phase for each of so many workers.  A real worker makes the models, then leaves."""
    left, jobs = workers, []
    while left > 0:
        replicas = min(left, REPLICAS_MAX)
        path = common.write_job(swarm.folder, data=left == workers, images=1000, batch=1, steps=4, rounds=2, replicas=replicas)
        jobs.append(swarm.submit(path))
        left -= replicas
    swarm.worker("maker", "--throttle", "1000")  # it ends none of the phases
    for job in jobs:
        swarm.wait_job(job, "running")
    swarm.kill("maker")
    # What it had goes back before the fleet comes: nobody is busy.
    common.wait_until(lambda: swarm.get("/v1/status").json()["tasks"]["leased"] == 0, 60, "the maker's lease to end")
    return jobs


class Asker(threading.Thread):
    """Asks for the status once a second until it is told to stop; ms holds the time of each answer."""

    def __init__(self, swarm):
        super().__init__(daemon=True)
        self.swarm, self.ms, self.bytes, self.ends = swarm, [], 0, threading.Event()
        self.start()

    def run(self):
        while not self.ends.wait(1):
            begun = time.monotonic()
            self.bytes = len(self.swarm.get("/v1/status").content)
            self.ms.append(1e3 * (time.monotonic() - begun))

    def stop(self):
        self.ends.set()
        self.join()


@contextlib.contextmanager
def fleet(swarm, build, workers, seconds):
    """The fleet's process once all workers have joined, and the line that reports it."""
    keys = os.path.join(swarm.folder, "keys")
    os.makedirs(keys, exist_ok=True)
    process = subprocess.Popen([f"{build}/release/tests/load/fleet", "@" + os.path.join(swarm.data, "worker.token"),
                                str(workers), str(seconds), keys], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the fleet has not joined; its reason is above")
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()


def measure(swarm, build, workers, seconds):
    """Runs so many workers for so long: a dict of the fleet's figures and the coordinator's."""
    pid = swarm.processes["coordinatord"].pid
    empty = resident(pid)
    begun = time.monotonic()
    with fleet(swarm, build, workers, seconds) as (process, joined):
        took = time.monotonic() - begun  # keys were made, too
        asker, cpu, since = Asker(swarm), cpu_seconds(pid), time.monotonic()
        line = process.stdout.readline()
        share = (cpu_seconds(pid) - cpu) / (time.monotonic() - since)
        each = (resident(pid) - empty) / workers
        asker.stop()
    return {**json.loads(line), "joined": joined["joined"], "joined_s": took, "share": share, "each_bytes": each,
            "status_ms": asker.ms, "status_bytes": asker.bytes}


def add(fig, name, got, workers):
    seen = (f"{workers} workers, {got['busy']} busy; {got['heartbeats']} heartbeats, median {got['p50_ms']:.1f} ms, longest "
            f"{got['max_ms']:.0f} ms; {got['late']} late, {got['lost']} cut, {got['revoked']} tasks lost")
    fig.add(f"{name}_core_share", got["share"], "of a core", "<=0.35", seen)
    fig.add(f"{name}_memory_each", got["each_bytes"] / 1024, "KiB", "<=48", f"all joined within {got['joined_s']:.1f} s")
    fig.add(f"{name}_heartbeat_p99", got["p99_ms"], "ms", "<=50")
    ms = sorted(got["status_ms"])
    fig.add(f"{name}_status_p99", ms[int(0.99 * len(ms))] if ms else None, "ms", "<=50",
            f"median {statistics.median(ms):.1f} ms, {got['status_bytes'] / 2**20:.2f} MiB, asked {len(ms)} times" if ms else "")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--workers", type=int, default=2000)
    p.add_argument("--seconds", type=int, default=30)
    p.add_argument("--only", choices=["idle", "busy"])
    args = p.parse_args()
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    import common
    from bench import Figures
    from swarm import Swarm
    fig, workers = Figures(), fit(args.workers)
    for name in [args.only] if args.only else ["idle", "busy"]:
        with tempfile.TemporaryDirectory(prefix="skerry-load-") as folder:
            swarm = Swarm(folder)
            try:
                swarm.coordinator("--heartbeat", "5s", "--lease", "30s")
                if name == "busy":
                    give_work(swarm, common, workers)
                add(fig, name, measure(swarm, args.build, workers, args.seconds), workers)
            finally:
                swarm.stop()
    fig.write(f"{args.build}/figures/load.json")
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
