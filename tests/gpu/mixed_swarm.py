#!/usr/bin/env python3
"""A swarm of one worker on the GPU and two on the CPU, from end to end.

    mixed_swarm.py --build build --device cuda:0

They train one model with e3m0 both ways.  The job must end; each worker must have done a part of it; and
what the workers hold as a version must be the coordinator's to the bit: a worker on the card and one on the
CPU compute the next version from the same delta, and find it by its SHA-256.  Then a worker is started
again on its warm cache to see how long it takes to its first step.  Figures are lines of JSON.
"""
import argparse
import hashlib
import json
import os
import re
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS, STARTS = 4, 3


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--build", default="build")
    ap.add_argument("--device", default="cuda:0")
    ap.add_argument("--small", action="store_true", help="a toy model: to try this on a CPU")
    return ap.parse_args()


def held(swarm, name):
    """Names of the worker's blobs whose content has the hash in the name."""
    found = set()
    for folder, _, files in os.walk(os.path.join(swarm.folder, f"work-{name}")):
        for file in files:
            if re.fullmatch("[0-9a-f]{64}", file):
                with open(os.path.join(folder, file), "rb") as f:
                    if hashlib.sha256(f.read()).hexdigest() == file:
                        found.add(file)
    return found


def check_versions(swarm, job, names):
    modules = swarm.get(f"/v1/modules?job={job}").json()["items"]
    shared, made = 0, 0
    blobs = {name: held(swarm, name) for name in names}
    for module in modules:
        for v in module["versions"]:
            if v["version"] > 0:
                made += 1
                shared += all(v["sha256"] in blobs[name] for name in names)
    assert made > 0, "no version after the first was kept"
    assert shared >= len(modules), f"of {made} versions only {shared} are held by all workers, bit for bit"
    return shared


def show(worker):
    """Prints the state of a worker, for the log."""
    assert worker["flops"] and worker["peak_flops"], f"{worker['name']} does not say how fast it was"
    print(f"{worker['name']}: {worker['flops'] / 1e12:.3g} of {worker['peak_flops'] / 1e12:.3g} TFLOP/s")
    for device in worker["devices"]:
        print("    " + ", ".join(f"{k} {v}" for k, v in device.items() if v not in (None, "")))


def submit(swarm, args, common, **keys):
    """Submits the job of the integration tests; on a GPU with heads as wide as those of real models."""
    if not args.small:
        keys["heads"] = keys["dim"] // 64
    return swarm.submit(common.write_job(os.path.join(swarm.folder, "job"), data=False, up="e3m0", down="e3m0",
                                         precision="auto", **keys))


def mixed(swarm, args, common):
    common.make_dataset(os.path.join(swarm.folder, "job", "data"), images=96 if args.small else 512)
    names = {"card": args.device, "cpu-a": "cpu", "cpu-b": "cpu"}
    for name, device in names.items():
        swarm.worker(name, "--device", device, threads=2)
    common.wait_until(lambda: len(swarm.get("/v1/workers").json()["items"]) == 3, 60, "three workers to join")
    size = {} if args.small else {"dim": 192, "depth": 4, "batch": 32}
    job = submit(swarm, args, common, replicas=3, rounds=ROUNDS, steps=6, **size)
    done = swarm.wait_job(job, "done", 240)
    workers = {w["name"]: w for w in swarm.get("/v1/workers").json()["items"]}
    for name in names:
        assert workers[name]["tasks_done"] > 0, f"{name} did nothing"
    if args.device.startswith("cuda"):
        assert "cpu" not in workers["card"]["device"].lower(), workers["card"]["device"]
    for name in names:
        show(workers[name])
    shared = check_versions(swarm, job, names)
    print(f"job done after round {done['round']}; tasks {({n: workers[n]['tasks_done'] for n in names})}; "
          f"{shared} versions equal on {', '.join(workers[n]['device'] for n in names)}")
    for name in names:
        swarm.kill(name, 15)
    return shared


def starts(swarm, args, common):
    """Seconds from the start of workerd to its first step; the first start only fills the cache."""
    size = {} if args.small else {"dim": 384, "depth": 12, "batch": 64}
    job = submit(swarm, args, common, replicas=1, rounds=1000, steps=50, **size)
    found = []
    for i in range(1 + STARTS):
        name = f"start-{i}"
        process = swarm._launch(name, [
            f"{common.BIN}/workerd", "--join", swarm.worker_token, "--name", "again", "--device", args.device,
            "--work-dir", os.path.join(swarm.folder, "work-again")])

        def stepped():
            assert process.poll() is None, swarm.tail(name)
            return re.search(r"first step after ([0-9.]+) ?s", swarm.log(name))

        found.append(float(common.wait_until(stepped, 60, "the first step").group(1)))
        swarm.kill(name, 15)
    swarm.post(f"/v1/jobs/{job}/cancel")
    print(f"first steps after {', '.join(f'{s:.2f}' for s in found)} s")
    return statistics.median(found[1:])


def main():
    args = arguments()
    os.environ["SKERRY_BIN"] = os.path.join(os.path.abspath(args.build), "bin")
    sys.path.insert(0, os.path.join(HERE, "..", "integration"))
    import common
    from swarm import running
    with tempfile.TemporaryDirectory() as folder, running(folder) as swarm:
        print(json.dumps({"shared": mixed(swarm, args, common)}), flush=True)
        print(json.dumps({"start_s": starts(swarm, args, common)}), flush=True)


if __name__ == "__main__":
    main()
