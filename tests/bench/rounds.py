"""The cost of a round beyond its steps: four workers and a coordinator in network namespaces, on links of any rate.

The steps' own time of a round is that of the slowest of its four phases, as its worker measured it step by step: the round
waits for that one alone, whatever the others do meanwhile on the same cores."""
import contextlib
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
MBIT, SLOW = 100, {"w3": "20mbit"}
GRACE_S, GRACE = 1, "grace: 1, "


def job_file(folder, outer):
    path = write_job(folder, data=dataset.make(os.path.join(folder, "data"), classes=2, images=2000), **SIZE)
    with open(path, encoding="utf-8") as f:
        # New workers are not checked: that takes a phase of one of the rounds that are measured.
        text = f.read().replace("outer: {", "outer: {spot_check: false, " + outer)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def each_way():
    """Bytes that have passed the network interface `out` of this thread's namespace: (received, sent)."""
    with open("/proc/thread-self/net/dev", encoding="utf-8") as f:
        (line,) = [x for x in f if x.strip().startswith("out:")]
    fields = line.split(":")[1].split()
    return int(fields[0]), int(fields[8])


def passed(net, names):
    """{name: bytes that its machine has (received, sent)}."""
    now = {}
    for n in names:
        with net.inside(n):
            now[n] = each_way()
    return now


def busiest(mbit, before, after, n):
    """(seconds that the bytes of each of n rounds need at least on the busiest link in one direction, that link)."""
    return max(((after[name][way] - before[name][way]) * 8e-6 / rate / n, f"{name}, {('in', 'out')[way]}")
               for name, rate in mbit.items() for way in (0, 1))


def steps_of(swarm, names):
    """{task: seconds of only its steps}, by the workers' logs."""
    said = r"times of task=(\d+):.* steps ([0-9.]+)"
    return {int(task): float(s) for n in names for task, s in re.findall(said, swarm.log(n))}


def run(swarm, net, names, outer, slow=()):
    """(seconds, seconds of the slowest phase's steps but for those of slow workers) of each round after the first ones, and the bytes of each link then."""
    with net.inside("c"):
        swarm.coordinator("--listen", "0.0.0.0", "--host", net.address["c"])
        for n in names:
            with net.inside(n):
                swarm.worker(n)
        job = swarm.submit(job_file(swarm.folder, outer))
        swarm.wait_round(job, YOUNG, ONE_S)
        before, first = passed(net, ["c", *names]), swarm.job(job)["round"]
        swarm.wait_round(job, ROUNDS, ONE_S)
        after = passed(net, ["c", *names])  # before the last samples: who draws them fetches an average, which comes whole
        history = swarm.wait_job(job, "done", ONE_S)["history"]
        tasks = [t for t in swarm.get("/v1/tasks?limit=1000").json()["items"] if t["kind"] == "train"]
    steps, slowest = steps_of(swarm, [n for n in names if n not in slow]), {}
    for t in tasks:
        slowest[t["round"]] = max(slowest.get(t["round"], 0), steps.get(t["id"], 0))
    need, link = busiest({n: MBIT for n in before}, before, after, ROUNDS - first)
    return [(r["seconds"], slowest[r["round"]]) for r in history if r["round"] > YOUNG], need, link


def over(rounds):
    return [took - steps for took, steps in rounds]


@contextlib.contextmanager
def shaped(make_swarm, name, rates):
    """A swarm, the net that its daemons are to be in, and their names: a coordinator and WORKERS workers."""
    names = [f"w{i}" for i in range(WORKERS)]
    net = Net(["c", *names], {n: rates.get(n, rates.get("")) for n in ("c", *names)})
    try:
        swarm = make_swarm(name)
        try:
            yield swarm, net, names
        finally:
            swarm.stop()
    finally:
        net.close()


def overheads(fig, make_swarm):
    """A row of the table for each of WAYS; make_swarm(name) makes a swarm in a folder of its own."""
    for name, (rate, outer, bound) in WAYS.items():
        try:
            with shaped(make_swarm, name, {"": rate}) as made:
                rounds, need, link = run(*made, outer)
            took = over(rounds)
            fig.add(name, statistics.median(took), "s", f"<={bound}",
                    f"median of {len(took)} rounds, {min(took):.2f} to {max(took):.2f} s beyond steps of "
                    f"{statistics.median(steps for _, steps in rounds):.2f} s; links: {rate or 'not shaped'}")
            if rate and not outer:
                fig.add("round_overhead_100mbit_bytes", statistics.median(took) / need, "x", "<=1.1",
                        f"of the {need:.2f} s that a round's bytes need on the busiest link one way ({link}), as if both ways overlapped whole")
        except (OSError, AssertionError, RuntimeError) as e:
            fig.add(name, None, "s", f"<={bound}", f"not measured: {e}")


def slow_link(fig, make_swarm):
    """The longer rounds of four workers of which one has a slow link, in graces."""
    found = {}
    for name, rates, outer in (("equal", {}, GRACE), ("slow", SLOW, GRACE), ("slow_default", SLOW, "")):
        with shaped(make_swarm, name, {"": f"{MBIT}mbit", **rates}) as made:
            took = over(run(*made, outer, slow=SLOW)[0])
            found[name] = statistics.median(took)
            print(f"  {name}: {', '.join(f'{t:.2f}' for t in took)} s", flush=True)
    fig.add("slow_link_wait", (found["slow"] - found["equal"]) / GRACE_S, "graces", "<=1",
            f"rounds {found['slow']:.2f} s beyond the others' steps where one of {WORKERS} links has 20 Mbit/s, {found['equal']:.2f} s where all have {MBIT}, "
            f"with a grace of {GRACE_S} s; {found['slow_default']:.2f} s by default, which waits for all")
