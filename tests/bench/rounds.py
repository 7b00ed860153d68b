"""The cost of a round beyond its steps: four workers and a coordinator in network namespaces, on links of any rate.

The steps' own time of a round is that of the slowest of its four phases, as its worker measured it step by step: the round
waits for that one alone, whatever the others do meanwhile on the same cores."""
import os
import re
import statistics
import sys

from bench import dataset, write_job

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
from net import Net  # noqa: E402

WORKERS, STEPS, ROUNDS, YOUNG = 4, 20, 10, 3  # the first rounds make files and learn what steps take
SIZE = dict(dim=256, depth=6, batch=4, replicas=WORKERS, steps=STEPS, rounds=ROUNDS)  # 7.4 M parameters
WAYS = {  # name: rate of each link, what the job says of its outer steps, bound in seconds
    "round_overhead_s": (None, "", 0.25),
    "round_overhead_100mbit_s": ("100mbit", "", 1.45),
    "round_overhead_fragments_s": ("100mbit", "fragments: 6, delay: 10, ", 0.3),  # a block each: as many bytes
}
ONE_S = 150  # for each of them


def job_file(folder, outer):
    path = write_job(folder, data=dataset.make(os.path.join(folder, "data"), classes=2, images=2000), **SIZE)
    with open(path, encoding="utf-8") as f:
        # New workers are not checked: that takes a phase of one of the rounds that are measured.
        text = f.read().replace("outer: {", "outer: {spot_check: false, " + outer)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def steps_of(swarm, names):
    """{task: seconds of only its steps}, by the workers' logs."""
    said = r"times of task=(\d+):.* steps ([0-9.]+)"
    return {int(task): float(s) for n in names for task, s in re.findall(said, swarm.log(n))}


def run(swarm, net, names, outer):
    """(seconds, seconds of the slowest phase's steps) of each round after the first ones."""
    with net.inside("c"):
        swarm.coordinator("--listen", "0.0.0.0", "--host", net.address["c"])
        for n in names:
            with net.inside(n):
                swarm.worker(n)
        job = swarm.submit(job_file(swarm.folder, outer))
        history = swarm.wait_job(job, "done", ONE_S)["history"]
        tasks = [t for t in swarm.get("/v1/tasks?limit=1000").json()["items"] if t["kind"] == "train"]
    steps, slowest = steps_of(swarm, names), {}
    for t in tasks:
        slowest[t["round"]] = max(slowest.get(t["round"], 0), steps[t["id"]])
    return [(r["seconds"], slowest[r["round"]]) for r in history if r["round"] > YOUNG]


def measure(fig, make_swarm):
    """A row of the table for each direction; make_swarm(name) makes a swarm in a folder of its own."""
    names = [f"w{i}" for i in range(WORKERS)]
    for name, (rate, outer, bound) in WAYS.items():
        net = swarm = None
        try:
            net = Net(["c", *names], {n: rate for n in ("c", *names)})
            swarm = make_swarm(name)
            rounds = run(swarm, net, names, outer)
            over = [took - steps for took, steps in rounds]
            fig.add(name, statistics.median(over), "s", f"<={bound}",
                    f"median of {len(over)} rounds, {min(over):.2f} to {max(over):.2f} s beyond steps of "
                    f"{statistics.median(steps for _, steps in rounds):.2f} s; links: {rate or 'not shaped'}")
        except (OSError, AssertionError, RuntimeError) as e:
            fig.add(name, None, "s", f"<={bound}", f"not measured: {e}")
        finally:
            if swarm:
                swarm.stop()
            if net:
                net.close()
