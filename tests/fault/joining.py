"""A worker joins in the middle of a job, on links of 100 Mbit/s: prints a line of JSON for tests/bench/fault.py.

Two workers train three phases a round, so that a third one gets a phase as soon as it joins; the version that it needs has 64 MB."""
import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), HERE]
from net import Net, apart  # noqa: E402

OTHERS = ("w0", "w1")
SIZE = dict(dim=256, depth=13, batch=2, images=800, replicas=3, rounds=1000, steps=12, eval_every=0)
THROTTLE = "2"


def phases(swarm, names, since):
    """Seconds of the phases that ended behind these line numbers of the workers' logs."""
    return [float(s) for n in names for s in re.findall(r"done task=\d+ train .* seconds=([0-9.]+)", "\n".join(swarm.log(n).splitlines()[since[n]:]))]


def a_phase_waits(swarm):
    """True in the middle of a round, when a new worker need not wait for a fold, and no delta uses the coordinator's link."""
    tasks = [t for t in swarm.get("/v1/tasks").json()["items"] if t["kind"] == "train" and t["state"] in ("pending", "leased")]
    return sorted((t["state"], 0 < t["steps_done"] <= SIZE["steps"] // 2) for t in tasks) == [("leased", True)] * 2 + [("pending", False)]


def lines(swarm):
    return {n: len(swarm.log(n).splitlines()) for n in OTHERS}


def run(swarm, net, common):
    swarm.coordinator("--listen", "0.0.0.0", "--host", net.address["c"], "--heartbeat", "200ms")
    for n in OTHERS:
        with net.inside(n):
            swarm.worker(n, "--throttle", THROTTLE)
    job = swarm.submit(common.write_job(swarm.folder, **SIZE))
    swarm.wait_round(job, 1, 150)
    calm = lines(swarm)
    common.wait_until(lambda: len(phases(swarm, OTHERS, calm)) >= 6, 150, "six phases")
    before = phases(swarm, OTHERS, calm)
    common.wait_until(lambda: a_phase_waits(swarm), 150, "a phase that nobody has")
    busy = lines(swarm)
    begun = time.monotonic()
    with net.inside("late"):
        swarm.worker("late", "--throttle", THROTTLE)
    common.wait_until(lambda: "first step after" in swarm.log("late"), 100, "its first step")
    took = time.monotonic() - begun
    common.wait_until(lambda: len(phases(swarm, OTHERS, busy)) >= 2, 150, "the phases beside it")
    record = swarm.job(job)
    fetched = float(re.search(r"times of task=\d+: .* fetched ([0-9.]+)", common.wait_until(
        lambda: "times of task" in swarm.log("late") and swarm.log("late"), 100, "its first phase")).group(1))
    return {"first_step_s": took, "fetched_s": fetched, "bytes": 4 * record["parameters"], "before_s": statistics.median(before),
            "beside_s": statistics.median(phases(swarm, OTHERS, busy)[:2])}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    args = p.parse_args()
    apart()
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    import common
    from swarm import Swarm
    names = ["c", *OTHERS, "late"]
    with tempfile.TemporaryDirectory(prefix="skerry-joining-") as folder:
        net, swarm = Net(names, {n: "100mbit" for n in names}), Swarm(folder)
        try:
            with net.inside("c"):
                print(json.dumps(run(swarm, net, common)))
        finally:
            swarm.stop()
            net.close()


if __name__ == "__main__":
    main()
