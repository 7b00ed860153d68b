"""Workers join in the middle of jobs on links of 100 Mbit/s: prints a line of JSON for tests/bench/fault.py.

The steps of all workers begin STEP_MS after each other whatever the cores do (tests/fault/paced.c), and take about a quarter of that: what changes
beside a newcomer is what it costs the others, not this machine.  The version that a newcomer needs has 64 MB.

First steps: two workers train three phases a round, so that a third one gets a phase as soon as it joins.
Rounds beside: two workers train two phases a round, and a third one joins at any moment, and fetches the version while it waits."""
import argparse
import json
import os
import random
import re
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), HERE]
from net import Net, apart  # noqa: E402

OTHERS = ("w0", "w1")
SIZE = dict(dim=256, depth=13, batch=1, images=800, rounds=1000, steps=40, eval_every=0)
STEP_MS, FIRSTS, BESIDE = 200, 3, 6


def a_phase_waits(swarm):
    """True in the middle of a round, when a new worker need not wait for a fold, and no delta uses the coordinator's link."""
    tasks = [t for t in swarm.get("/v1/tasks").json()["items"] if t["kind"] == "train" and t["state"] in ("pending", "leased")]
    return sorted((t["state"], 0 < t["steps_done"] <= SIZE["steps"] // 4) for t in tasks) == [("leased", True)] * 2 + [("pending", False)]


class Joins:
    """A coordinator, two workers, and those that join and leave."""

    def __init__(self, swarm, net, common, paced):
        self.swarm, self.net, self.common, self.paced, self.joined = swarm, net, common, paced, 0
        swarm.coordinator("--listen", "0.0.0.0", "--host", net.address["c"], "--heartbeat", "200ms")
        for n in OTHERS:
            self.start(n, n)

    def start(self, name, where):
        with self.net.inside(where):
            self.swarm.worker(name, program=self.paced, env={"SKERRY_STEP_MS": str(STEP_MS)})

    def join(self):
        self.joined += 1
        self.start(f"late{self.joined}", "late")
        return f"late{self.joined}"

    def submit(self, replicas):
        path = self.common.write_job(self.swarm.folder, **SIZE, replicas=replicas)
        with open(path, encoding="utf-8") as f:
            text = f.read().replace("outer: {", "outer: {spot_check: false, ")  # a check takes a phase of one of the rounds that are measured
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        job = self.swarm.submit(path)
        self.swarm.wait_round(job, 1, 150)
        return job

    def first_steps(self):
        """(seconds to the first step, seconds of its transfer) of each newcomer, which leaves after a phase, and the version's bytes."""
        job, found, wait = self.submit(3), [], self.common.wait_until
        for _ in range(FIRSTS):
            wait(lambda: a_phase_waits(self.swarm), 150, "a phase that nobody has")
            begun, name = time.monotonic(), self.join()
            wait(lambda: "first step after" in self.swarm.log(name), 100, "its first step")
            took = time.monotonic() - begun
            wait(lambda: "times of task" in self.swarm.log(name), 100, "its first phase")
            self.swarm.kill(name)
            found.append((took, float(re.search(r"times of task=\d+: .* fetched ([0-9.]+)", self.swarm.log(name)).group(1))))
        size = 4 * self.swarm.job(job)["parameters"]
        assert self.swarm.skerry("cancel", str(job)).returncode == 0
        return *zip(*found), size

    def beside(self):
        """Seconds of calm rounds, and of each round of a join and the one after it."""
        job, calm, met, rng = self.submit(2), [], [], random.Random(5)
        for _ in range(BESIDE):
            first = self.swarm.job(job)["round"] + 1  # that which is under way may not be calm
            self.swarm.wait_round(job, first + 1)
            time.sleep(rng.uniform(0, STEP_MS * SIZE["steps"] / 1e3))
            name = self.join()
            self.swarm.wait_round(job, first + 3)
            self.swarm.kill(name)  # it may have a phase: the round under way is not counted
            took = {r["round"]: r["seconds"] for r in self.swarm.job(job)["history"]}
            calm.append(took[first + 1])
            met.append((took[first + 2], took[first + 3]))
        return calm, met


def run(joins):
    first, fetched, size = joins.first_steps()
    calm, met = joins.beside()
    return {"first_step_s": first, "fetched_s": fetched, "bytes": size, "calm_s": calm, "met_s": met}


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
                print(json.dumps(run(Joins(swarm, net, common, os.path.abspath(f"{args.build}/release/tests/fault/paced")))))
        finally:
            swarm.stop()
            net.close()


if __name__ == "__main__":
    main()
