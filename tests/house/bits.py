"""Do two builds compute the same, to the bit?

    bits.py --old build/house/COMMIT/build/bin --new build/bin [--only NAME ...] [--out build/figures/bits.json]
    bits.py --commit a1f3d3e --new build/bin     builds the old side itself, under build/house/

Runs the six jobs of jobs.py with the programs of each side and compares what comes out, item by item: every tensor of
every exported model, all losses, modules with the versions that are kept, their hashes and provenance, tasks, samples
and the status.  Then the coordinator of the new side opens each data directory that the old one has left, and must show
and export the same ("reopened").  `takeover` kills an old swarm in the middle of a phase and goes on with the new
programs on the same directories, to the weights of a run that nobody stopped.

A row per comparison, and in the end `bits_changed`, the number of items that differ."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time

import jobs
from daemons import Daemons, build_commit

SEED = 5
SHOWN = 8  # differing items of a comparison that are printed

# What two runs of the same programs do not share, by name or by PARENT.name.  All else is compared.
STRIPPED = {
    # when, and how long
    "at": "time stamp", "created_at": "time stamp", "seconds": "duration", "uptime_ms": "duration",
    "elapsed_ms": "duration", "eta_ms": "duration", "age_ms": "duration", "leased_ms": "duration",
    "waited_ms": "duration", "waited_share": "of durations", "images_per_s": "rate", "peak_bytes_per_s": "rate",
    # who
    "cluster": "random id", "worker": "identity", "worker_name": "identity",
    # the order of what does not depend on each other: a loss is measured before or after the next phase begins.
    # Lists in that order are sorted
    "tasks.id": "order", "task": "order", "metrics.n": "order",
    "job.loss": "of the path that was last", "jobs.loss": "of the path that was last",
    "job.eval_loss": "of the path that was last", "jobs.eval_loss": "of the path that was last",
    # of the moment of asking
    "workers": "load, memory, port, bytes at the socket", "rss_bytes": "memory", "disk_room_bytes": "disk", "store": "commits are batched by time",
    "tasks.steps_total": "as the newest heartbeat had it, where there was one",
    "modules.reason": "of its newest outer step", "waiting_for": "who, until when",
    # bytes at sockets
    "bytes_here": "with heartbeats", "status.bytes": "with heartbeats",
    "bytes.data_down": "an evaluation may find its shard in the cache",
}
# Nor does a run that was stopped share with one that was not: a worker that starts again fetches again, and some
# counters are in the coordinator's memory alone.
NOT_OVER_A_RESTART = (".bytes_down", ".bytes_up", "bytes.down", ".per_param_down", ".ratio",
                      ".ratio_to_fp32_data_parallel", ".samples_done", ".steps_done", ".attempt")
# A snapshot of a phase is reported with the samples of the step that was reached when its upload ended.  One replica: no
# sum depends on it.
OF_SNAPSHOTS = re.compile(r"contributions[.]\d+[.](samples|weight)$")
ORDER = ("kind", "path", "replica", "round", "step", "name")


def strip(value, parent):
    if isinstance(value, dict):
        return {k: strip(v, k) for k, v in value.items() if k not in STRIPPED and f"{parent}.{k}" not in STRIPPED}
    return [strip(v, parent) for v in value] if isinstance(value, list) else value


def ordered(records, parent):
    return sorted((strip(r, parent) for r in records), key=lambda r: json.dumps([[r.get(k) for k in ORDER], r], sort_keys=True))


def flatten(prefix, value, into):
    """Leaves of a JSON value by their path."""
    if value and isinstance(value, (dict, list)):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            flatten(f"{prefix}.{k}", v, into)
    else:
        into[prefix] = value


def flatten_keyed(prefix, records, into):
    """Leaves of records, keyed by the object of each record, so that an additional record does not shift the others."""
    seen = {}
    for r in records:
        key = " ".join(f"{k} {r[k]}" for k in ORDER if k in r)
        seen[key] = seen.get(key, 0) + 1
        flatten(f"{prefix}.{key}" + (f" again {seen[key]}" if seen[key] > 1 else ""), r, into)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def add_export(prefix, folder, into):
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        if not name.endswith(".safetensors"):
            into[f"{prefix}/{name}"] = digest(data)
            continue
        n, = struct.unpack("<Q", data[:8])
        for tensor, t in json.loads(data[8:8 + n]).items():
            if tensor == "__metadata__":
                flatten(f"{prefix}/{name}:metadata", t, into)
            else:
                a, b = (8 + n + at for at in t["data_offsets"])
                into[f"{prefix}/{name}:{tensor}"] = f"{t['dtype']} {t['shape']} {digest(data[a:b])}"


def add_models(d, job, into):
    for path in job["path_list"]:
        for flags in ((), ("--raw",)) if path["network"] == "main" else ():
            with tempfile.TemporaryDirectory() as out:
                d.skerry("export", job["id"], "--path", path["path"], "--out", out, *flags)
                add_export(f"job{job['id']}/path{path['path']}{'/raw' if flags else ''}", out, into)


def look(d):
    """Everything that a swarm shows, as {item: value}."""
    items, status = {}, json.loads(d.skerry("status", "--json"))
    flatten("status", strip(status, "status"), items)
    flatten("modules", strip(d.json("/v1/modules")["items"], "modules"), items)
    flatten_keyed("tasks", ordered(d.json("/v1/tasks")["items"], "tasks"), items)
    for summary in status["jobs"]:
        job = d.json(f"/v1/jobs/{summary['id']}")
        for key in ("figures", "samples", "history"):
            job[key] = ordered(job[key], key)
        flatten(f"job{job['id']}", strip(job, "job"), items)
        metrics = d.get(f"/v1/jobs/{job['id']}/metrics").decode().splitlines()
        flatten_keyed(f"job{job['id']}/metrics", ordered(map(json.loads, metrics), "metrics"), items)
        for sample in job["samples"]:
            if sample["blob"]:
                assert digest(d.get(f"/v1/blobs/{sample['blob']}")) == sample["blob"]
        add_models(d, job, items)
    return items


def train(d, texts, seed):
    """Runs jobs one after the other."""
    for path in jobs.write(d.path("job"), texts, seed):
        d.wait_job(d.submit(path), lambda job: False)
    return look(d)


def lasting(items):
    """The items that a restart must not change.  Steps since the checkpoint are made again, and must have the same loss."""
    again = {k for k, v in items.items() if " again " in k and items[re.sub(r" again \d+", "", k)] == v}
    return {k: v for k, v in items.items() if k not in again and not k.endswith(NOT_OVER_A_RESTART)}


def reopen(d, new):
    """Stops the coordinator, opens a copy of its directory with its own programs and the original with others, and returns
    the items that each shows.  (Items that were only in memory are gone on both sides, such as the progress of tasks.)"""
    d.stop("coordinatord")
    shutil.copytree(d.data, d.path("copy/data"))
    with Daemons(d.bin, d.path("copy")) as same:
        same.coordinator()
        was = look(same)
    d.bin = os.path.abspath(new)
    d.coordinator()
    return was, look(d)


def compare_job(name, old, new, folder, seeds):
    """[(comparison, items of one side, items of the other)]"""
    with Daemons(old, os.path.join(folder, "old")) as a, Daemons(new, os.path.join(folder, "new")) as b:
        for d in (a, b):  # here: a daemon dies with the thread that started it
            d.coordinator()
            d.worker()
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            ran = [both.submit(train, d, jobs.JOBS[name], seed) for d, seed in zip((a, b), seeds)]
            was, now = (r.result() for r in ran)
        if name == "fragments":
            was, now = ({k: v for k, v in items.items() if not OF_SNAPSHOTS.search(k)} for items in (was, now))
        a.stop("worker")
        return [(name, was, now), (f"{name}, reopened", *reopen(a, new))]


def compare_takeover(name, old, new, folder, seeds):
    """Worker and coordinator are killed in the middle of a phase; the worker goes on from its checkpoint."""
    with Daemons(old, os.path.join(folder, "whole")) as a, Daemons(old, os.path.join(folder, "cut")) as b:
        for d in (a, b):
            d.coordinator()
            d.worker()
        whole = train(a, [jobs.LONG], seeds[0])
        job = b.submit(jobs.write(b.path("job"), [jobs.LONG], seeds[1])[0])
        b.wait_job(job, lambda j: j["round"] >= 2 and any(p["steps_done"] for p in j["phases"]))
        b.stop("worker", signal.SIGKILL)
        assert b.json(f"/v1/jobs/{job}")["state"] == "running", "the job was over before it could be stopped"
        was, now = reopen(b, new)
        b.worker()
        b.wait_job(job, lambda j: False)
        return [("running, reopened", was, now), ("running, to its end", lasting(whole), lasting(look(b)))]


def report(name, was, now, seconds):
    # A field of the API that is new and null says what the old commit said by its absence.
    differ = sorted(k for k in {*was, *now}
                    if was.get(k, "nothing") != now.get(k, "nothing") and (k in was or now[k] is not None))
    tensors = sum(".safetensors:" in k for k in was)
    print(f"{name:22} {len(was):6} items, {tensors:4} tensors: {len(differ):5} differ  {seconds:5.1f} s", flush=True)
    for k in differ[:SHOWN]:
        print(f"    {k}: {was.get(k, 'nothing')} | {now.get(k, 'nothing')}")
    return {"name": name, "value": len(differ), "items": len(was), "tensors": tensors, "first": differ[:SHOWN]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--old", help="directory of the old programs")
    p.add_argument("--commit", help="the old side is this commit, built under build/house/")
    p.add_argument("--new", default="build/bin")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--out", default="build/figures/bits.json")
    p.add_argument("--break", dest="broken", action="store_true", help=argparse.SUPPRESS)  # the new side gets another seed
    args = p.parse_args()
    if bool(args.old) == bool(args.commit):
        p.error("one of --old and --commit")
    parts = {**{name: compare_job for name in jobs.JOBS}, "takeover": compare_takeover}
    if unknown := set(args.only) - set(parts):
        p.error(f"no job '{unknown.pop()}'; there are {', '.join(parts)}")
    os.environ.setdefault("SKERRY_CPU_ISA", "avx2")  # figures of one machine are those of another
    old = args.old or os.path.join(build_commit(args.commit), "bin")
    seeds = (SEED, SEED + 100 * args.broken)
    rows = []
    for name, compare in parts.items():
        if args.only and name not in args.only:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = compare(name, old, args.new, folder, seeds)
        rows += [report(*row, time.monotonic() - start) for row in found]
    changed, items = (sum(row[k] for row in rows) for k in ("value", "items"))
    print(f"bits_changed {changed} of {items} items")
    if not args.only and not args.broken:
        rows.append({"name": "bits_changed", "value": changed, "items": items})
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
    sys.exit(changed > 0)


if __name__ == "__main__":
    main()
