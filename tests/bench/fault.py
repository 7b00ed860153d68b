"""The cost of machines that vanish, with real daemons on loopback: prints a table, writes build/figures/fault.json.

    fault.py --build build [--only NAME ...] [--kills 50]

Workers are throttled, so that the phases of several fit two cores and a step takes as long in every run."""
import argparse
import contextlib
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import attack  # noqa: E402
import crowd  # noqa: E402
from bench import Figures, measure_within  # noqa: E402

sys.path.insert(0, os.path.join(HERE, "..", "fault"))
from oracle import acknowledged, undone  # noqa: E402
from shim import Shim  # noqa: E402

TINY = dict(dim=64, depth=2, batch=8, images=4000, rounds=1000, replicas=1, steps=100)
BEAT = ("--heartbeat", "100ms")


def job(swarm, common, outer="", **keys):
    path = common.write_job(swarm.folder, **{**TINY, **keys})
    text = open(path, encoding="utf-8").read().replace("outer: {", "outer: {" + outer)
    open(path, "w", encoding="utf-8").write(text)
    return swarm.submit(path)


def training(swarm):
    """The phases that are under way."""
    return [t for t in swarm.get("/v1/tasks?state=leased").json()["items"] if t["kind"] == "train"]


class Watched:
    """A phase as seen from outside: its position over time, and its speed."""

    def __init__(self, swarm):
        self.swarm, self.seen, self.saved, self.task = swarm, [], [], None

    def look(self):
        for t in training(self.swarm):
            if t["id"] != self.task:
                self.task, self.seen, self.saved = t["id"], [], []
            if not self.seen or self.seen[-1][1] != t["steps_done"]:
                self.seen.append((time.monotonic(), t["steps_done"]))
            if t["saved_steps"] and t["saved_steps"] not in self.saved:
                self.saved.append(t["saved_steps"])
            return t
        return None

    def rate(self):
        """Steps per second."""
        (t0, s0), (t1, s1) = self.seen[0], self.seen[-1]
        return (s1 - s0) / (t1 - t0) if s1 > s0 else None

    def now(self, steps):
        t, s = self.seen[-1]
        return min(steps, s + (self.rate() or 0) * (time.monotonic() - t))


def lost_work(fig, swarm_of, common, kills):
    """SIGKILL at a random moment: the worker's steps since its last snapshot, in intervals of snapshots."""
    rng, interval, steps = random.Random(7), 0.5, 100
    lost, broken, gaps = [], 0, []
    with swarm_of(*BEAT) as swarm:
        name = "w0"
        swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, f"snapshot: {interval}, ", steps=steps)
        swarm.wait_round(number, 1, 60)
        watch = Watched(swarm)
        for i in range(kills):
            until = time.monotonic() + rng.uniform(2.5, 5.5)
            while time.monotonic() < until:
                watch.look()
                time.sleep(0.02)
            held = watch.look()
            at = watch.now(steps) if held and watch.rate() else 0
            saved = held["saved_steps"] if held else 0
            gaps += [b - a for a, b in zip(watch.saved, watch.saved[1:])]
            swarm.kill(name)
            name = f"w{i + 1}"
            swarm.worker(name, "--throttle", "9")

            def goes_on():
                found = re.search(r"going on at step (\d+) of a phase that was cut task=(\d+)", swarm.log(name))
                if found:
                    return int(found.group(1)), int(found.group(2))
                begun = [t for t in training(swarm) if t["worker_name"] == name and t["steps_done"] > 0]
                return (0, begun[0]["id"]) if begun else None
            step, task = common.wait_until(goes_on, 60, "another worker to go on")
            if held and task == held["id"]:
                lost.append(max(at - step, 0))
                broken += step < saved
            else:
                lost.append(0)  # all of it was reported
        steps_of_interval = statistics.median(gaps)
    mean = statistics.mean(lost) / steps_of_interval
    fig.add("lost_by_sigkill", mean, "intervals", "<=0.5",
            f"mean of {kills}; a snapshot every {steps_of_interval:.0f} of {steps} steps")
    fig.add("acknowledged_lost", broken, "kills", "<=0", f"of {kills}")


def released(fig, swarm_of, common):
    """The time from SIGKILL to the next lease, and the duration of that round over that of calm ones."""
    free, calm, cut = [], [], []
    with swarm_of(*BEAT) as swarm:
        for name in ("w0", "w1", "w2"):
            swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, "snapshot: 1, ", steps=400, replicas=2)
        swarm.wait_round(number, 1, 120)
        names, spare = ["w0", "w1", "w2"], 3
        for i in range(10):
            before = swarm.job(number)["round"]
            begun = time.monotonic()
            if i % 2:
                common.wait_until(lambda: len([t for t in training(swarm) if t["steps_done"] > 40 + 30 * i]) == 2, 60, "a phase")
                victim = training(swarm)[0]
                since = time.monotonic()
                swarm.kill(victim["worker_name"])
                common.wait_until(lambda: any(t["id"] == victim["id"] and t["attempt"] > victim["attempt"] for t in training(swarm)),
                                  30, "the task to be leased again")
                free.append(time.monotonic() - since)
                names.remove(victim["worker_name"])
                names.append(f"w{spare}")
                swarm.worker(f"w{spare}", "--throttle", "9")
                spare += 1
            swarm.wait_round(number, before + 1, 120)
            (cut if i % 2 else calm).append(time.monotonic() - begun)
    fig.add("kill_to_lease", max(free), "s", "<=1", f"the longest of {len(free)}, median {statistics.median(free):.2f}")
    fig.add("round_with_kill", statistics.median(cut) / statistics.median(calm), "x", "<=1.15",
            f"{statistics.median(cut):.1f} s over {statistics.median(calm):.1f} s, snapshots every second")


def notice(fig, swarm_of, common):
    """Steps that are made twice after a notice of 30 s, on a link of 20 Mbit/s with 10 M parameters."""
    with swarm_of(*BEAT) as swarm:
        flag = swarm.folder + "/preempted"
        swarm.worker("a", "--spot", flag, "--max-bandwidth", "20Mbit")
        job(swarm, common, "snapshot: 600, ", dim=256, depth=9, steps=4000, images=800)
        common.wait_until(lambda: any(t["steps_done"] >= 20 for t in training(swarm)), 240, "20 steps")
        task = training(swarm)[0]
        open(flag, "w", encoding="utf-8").write("30\n")
        since = time.monotonic()
        swarm.processes["a"].wait(40)
        left = time.monotonic() - since
        found = re.search(r"is saved at step (\d+) of (\d+) steps made", swarm.log("a"))
        kept = swarm.get(f"/v1/tasks/{task['id']}").json()["saved_steps"]
        params = swarm.job(task["job"])["parameters"]
    fig.add("lost_with_notice", int(found.group(2)) - kept if found else None, "steps", "<=0",
            f"{params / 1e6:.1f} M parameters, gone {left:.1f} s after a notice of 30 s, at step {kept}")


def stopped(fig, swarm_of, common):
    """The time until another worker has the task of one that is stopped (with a lease of 5 s), and of one that crawls."""
    with swarm_of("--lease", "5s", *BEAT) as swarm:
        for name in ("w0", "w1", "w2"):
            swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, "snapshot: 1, ", steps=150, replicas=2)
        swarm.wait_round(number, 3, 120)

        def taken_from(name, act):
            common.wait_until(lambda: any(t["worker_name"] == name and t["steps_done"] > 0 for t in training(swarm)), 60, f"{name} to train")
            victim = next(t for t in training(swarm) if t["worker_name"] == name)
            since = time.monotonic() - (0 if act else victim["leased_ms"] / 1e3)
            if act:
                act()
            common.wait_until(lambda: any(t["id"] == victim["id"] and t["attempt"] > victim["attempt"] for t in training(swarm)), 60, "another lease")
            return time.monotonic() - since
        victim = training(swarm)[0]["worker_name"]
        took = taken_from(victim, lambda: swarm.kill(victim, signal.SIGSTOP))
        fig.add("stopped_to_lease", took, "s", "<=6", "lease 5 s")
        swarm.kill(victim)
        begun, before = time.monotonic(), swarm.job(number)["round"]
        swarm.wait_round(number, before + 3, 120)
        phase = (time.monotonic() - begun) / 3
        swarm.kill(next(n for n in ("w0", "w1", "w2") if n != victim))
        swarm.worker("crawls", "--throttle", "200")
        took = taken_from("crawls", None)
        fig.add("crawling_to_lease", took / phase, "phases", "<=2.2", f"twice the observed phase, and a look; {phase:.1f} s")


def coordinator(fig, swarm_of, common):
    """The delay of a round whose worker is killed and comes back after 5 s."""
    calm, cut = [], []
    with swarm_of(*BEAT) as swarm:
        for name in ("w0", "w1"):
            swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, steps=300, replicas=2)
        swarm.wait_round(number, 1, 120)
        for i in range(6):
            before, begun = swarm.job(number)["round"], time.monotonic()
            if i % 2:
                common.wait_until(lambda: any(t["steps_done"] > 150 for t in training(swarm)), 60, "a phase")
                swarm.kill("coordinatord")
                time.sleep(5)
                swarm.coordinator(*BEAT)
            swarm.wait_round(number, before + 1, 120)
            (cut if i % 2 else calm).append(time.monotonic() - begun)
    fig.add("coordinator_back_after_5s", max(cut) - statistics.median(calm), "s", "<=5.5", "delay of the round, the longest of 3")


def killed_often(fig, swarm_of, common, kills):
    """Results that were acknowledged and are not on record, after many kills of a coordinator under workers that report ten times a second."""
    rng, taken, lost, twice, took = random.Random(3), 0, set(), set(), []
    with swarm_of(*BEAT) as swarm:
        for name in ("w0", "w1"):
            swarm.worker(name)
        number = job(swarm, common, dim=32, steps=4, replicas=2, images=400, rounds=100000)
        swarm.wait_round(number, 1, 60)
        for _ in range(kills):
            before = swarm.job(number)["round"]
            swarm.wait_round(number, before + 1, 60)
            time.sleep(rng.uniform(0, 0.3))
            swarm.kill("coordinatord")
            told = [t for name in ("w0", "w1") for t in acknowledged(swarm.log(name))]
            begun = time.monotonic()
            swarm.coordinator(*BEAT)
            took.append(time.monotonic() - begun)
            on_record = {t["id"]: t for t in swarm.get(f"/v1/tasks?job={number}&limit=1000").json()["items"]}
            lost |= {t for t in told if t in on_record and undone(on_record[t])}
            twice |= {t for t in told[taken:] if told.count(t) > 1}
            taken = len(told)
    fig.add("acknowledged_lost_in_kills", len(lost) + len(twice), "results", "<=0", f"of {taken} that two workers were told are taken, in {kills} kills")
    fig.add("killed_to_serving", max(took), "s", "<=1", f"the longest of {kills}, median {statistics.median(took):.2f} s")


def stalled(fig, swarm_of, common, build):
    """Leases that are lost while a flush takes a minute."""
    with tempfile.TemporaryDirectory() as folder, swarm_of("--lease", "5s", *BEAT, env=(shim := Shim(build, f"{folder}/shim")).env) as swarm:
        for name in ("w0", "w1"):
            swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, steps=300, replicas=2)
        swarm.wait_round(number, 1, 120)
        common.wait_until(lambda: len(training(swarm)) == 2, 60, "two phases")
        begun, slow = time.monotonic(), 0
        shim.tell(flush_ms=100000)
        while time.monotonic() < begun + 61:
            slow = max(slow, swarm.get("/v1/status").json().get("store", {}).get("writing_ms", 0))
            time.sleep(0.2)
        shim.tell(flush_ms=0)
        swarm.wait_round(number, swarm.job(number)["round"] + 2, 120)
        lost = swarm.log("coordinatord").count("is lost") + swarm.log("coordinatord").count("lost its lease")
    fig.add("leases_lost_in_stall", lost, "leases", "<=0", f"a commit of {slow / 1e3:.0f} s, lease 5 s, two workers")


def paused(fig, swarm_of, common):
    """Leases that are lost while the coordinator is stopped for a minute."""
    with swarm_of("--lease", "5s", *BEAT) as swarm:
        for name in ("w0", "w1"):
            swarm.worker(name, "--throttle", "9")
        number = job(swarm, common, steps=300, replicas=2)
        swarm.wait_round(number, 1, 120)
        swarm.kill("coordinatord", signal.SIGSTOP)
        time.sleep(60)
        swarm.kill("coordinatord", signal.SIGCONT)
        again = swarm.stranger()  # the connection of before may be closed
        again.headers.update(swarm.session.headers)
        swarm.session = again
        swarm.wait_round(number, swarm.job(number)["round"] + 2, 120)
        lost = swarm.log("coordinatord").count("is lost") + swarm.log("coordinatord").count("lost its lease")
    fig.add("leases_lost_in_pause", lost, "leases", "<=0", "60 s, lease 5 s, two workers")


def wal_removed(fig, swarm_of, common):
    """Rounds that a coordinator, killed and started without its -wal, would have forgotten and served without."""
    with swarm_of(*BEAT) as swarm:
        swarm.worker("w0")
        number = job(swarm, common, dim=32, steps=4, images=400, rounds=100000)
        swarm.wait_round(number, 3, 60)
        told = swarm.job(number)["round"]
        swarm.kill("coordinatord")
        os.rename(f"{swarm.data}/coordinator.db-wal", f"{swarm.folder}/kept")
        try:
            swarm.coordinator(*BEAT)
            lost, how = told - next((j["round"] for j in swarm.get("/v1/jobs").json()["items"]), 0), "it serves"
        except AssertionError:
            (lost, how), says = (0, "refused"), swarm.log("coordinatord")
            assert "older than it was" in says, says[-300:]
    fig.add("wal_removed", lost, "rounds", "<=0", f"lost without a word of {told}: {how}")


def figures(args):
    """{name: (the function that measures it, its time limit in seconds)}."""
    return {
        "lost_by_sigkill": (lambda *a: lost_work(*a, args.kills), 600), "kill_to_lease": (released, 300), "lost_with_notice": (notice, 300),
        "stopped_to_lease": (stopped, 300), "coordinator_back_after_5s": (coordinator, 300), "leases_lost_in_pause": (paused, 200),
        "leases_lost_in_stall": (lambda *a: stalled(*a, args.build), 200),
        "acknowledged_lost_in_kills": (lambda *a: killed_often(*a, 4 * args.kills), 400),
        "open_tasks": (lambda *a: crowd.open_tasks(*a, args.build, args.workers), 400),
        "turns": (lambda *a: crowd.turns(*a, args.build), 200),
        "churn": (crowd.churn, 300),
        "failing": (lambda fig, *_: crowd.failing(fig, args.build), 200),
        "wal_removed": (wal_removed, 200),
        "unplugged": (lambda fig, *_: crowd.unplugged(fig, args.build), 450),
        "joining": (lambda fig, *_: crowd.joining(fig, args.build), 600),
        "strangers": (attack.strangers, 200),
        "evil": (lambda *a: attack.evil(*a, args.build), 600),
        **{f"poison_{n}_{way}": (lambda *a, n=n, way=way: attack.poison(*a, args.build, n, way), 300 if n < 8 else 600)
           for n in (2, 3, 8) for way in attack.POISONED},
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--kills", type=int, default=50)
    p.add_argument("--workers", type=int, default=10000)
    p.add_argument("--only", action="append", default=[])
    args = p.parse_args()
    if unknown := set(args.only) - set(figures(args)):
        p.error(f"--only {' '.join(unknown)}: expected one of {' '.join(figures(args))}")
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    sys.path.insert(0, os.path.join(HERE, "..", "integration"))
    import common
    from swarm import Swarm

    @contextlib.contextmanager
    def swarm_of(*flags, **how):
        with tempfile.TemporaryDirectory(prefix="skerry-fault-") as folder:
            s = Swarm(folder)
            try:
                s.coordinator(*flags, **how)
                yield s
            finally:
                s.stop()

    fig = Figures()
    for name, (measure, seconds) in figures(args).items():
        if args.only and name not in args.only:
            continue
        measure_within(fig, (name,), seconds, lambda measure=measure: measure(fig, swarm_of, common))
    fig.write(f"{args.build}/figures/fault.json", keep=bool(args.only))
    return 0 if all(row["holds"] for row in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
