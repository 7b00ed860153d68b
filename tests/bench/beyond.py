"""The traffic that an object store takes off the coordinator, and the cost of its faults: prints a table, writes build/figures/beyond.json.

    beyond.py --build build [--only NAME ...]

The store is OpenStack Swift in one process (tests/integration/object_store.py), behind a relay in this one; daemons are real."""
import argparse
import datetime
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "integration"), os.path.join(HERE, "..", "fault")]
from bench import Figures, measure_within  # noqa: E402
from oracle import acknowledged, undone  # noqa: E402
import rounds  # noqa: E402

BEYOND, YOUNG = 8, 2  # workers; rounds that make files and learn what steps take
SIZES = {"7.4 M": dict(dim=256, depth=6), "1.3 M": dict(dim=128, depth=4)}  # parameters
FAULTY = dict(dim=64, depth=2, batch=8, images=4000, replicas=4, rounds=12, steps=100)  # a round is some seconds
ONE_S = 280
PAID = 3
SITE, SCALES, SCALE_ROUNDS = 4, (4, 16, 64), 20


def counted():
    return sum(rounds.each_way())


def own_link(net, rate_less=("c", "s")):
    """A cable only between coordinator and store, so that their traffic is not counted as the workers'."""
    c, s = (f"{net.tag}-{n}" for n in rate_less)
    net._in(c, f"ip link add name store type veth peer name hub netns {s}")
    for space, dev, address in ((c, "store", "10.213.78.1/30"), (s, "hub", "10.213.78.2/30")):
        net._in(space, f"ip addr add {address} dev {dev}")
        net._in(space, f"ip link set dev {dev} up")
    net._in(c, f"ip route add {net.address['s']}/32 via 10.213.78.2")


def bytes_of_rounds(common, folder, size):
    """(bytes per round and worker at the coordinator's ports, the same between coordinator and store)."""
    import relay
    from swarm import Swarm
    names = [f"w{i}" for i in range(BEYOND)]
    net = rounds.Net(["c", "s", *names], None)
    swarm, store = Swarm(folder), None
    try:
        own_link(net)
        with net.inside("s"):
            store = relay.Store(os.path.join(folder, "store"), net.address["s"])
            store.relay.sums = {}  # as Amazon's: workers fold
        with net.inside("c"):
            swarm.coordinator(*store.flags("bench"), "--listen", "0.0.0.0", "--host", net.address["c"], env=relay.KEY)
            for n in names:
                with net.inside(n):
                    swarm.worker(n, env={"no_proxy": "*"})
            job = swarm.submit(common.write_job(folder, **SIZES[size], batch=1, images=1000, replicas=BEYOND, steps=2, rounds=8))
            swarm.wait_round(job, YOUNG, ONE_S)
            first, before, at_store = swarm.job(job)["round"], counted(), swarm.get("/v1/status").json()["blob_store"]["bytes"]
            done = swarm.wait_job(job, "done", ONE_S)
            passed, after = counted() - before, swarm.get("/v1/status").json()["blob_store"]["bytes"]
        n = (done["round"] - first) * BEYOND
        return passed / n, sum(after[k] - at_store[k] for k in after) / n
    finally:
        swarm.stop()
        if store:
            store.stop()
        net.close()


def coordinator_bytes(fig, common, folder):
    what = {size: bytes_of_rounds(common, os.path.join(folder, size.split()[0]), size) for size in SIZES}
    here, store = what["7.4 M"]
    fig.add("coordinator_bytes_per_round", here / 1024, "KiB", "<=64",
            f"a worker, of {BEYOND}, 7.4 M parameters, at the ports that workers dial (frames of the link); with 1.3 M parameters "
            f"{what['1.3 M'][0] / 1024:.1f}")
    fig.add("coordinator_bytes_with_store", (here + store) / 1024, "KiB", "<=64",
            f"the same and what passes between coordinator and store, where workers fold; with 1.3 M parameters {sum(what['1.3 M']) / 1024:.0f}")


def over_slow_links(fig, common, folder):
    """The time of rounds beyond their steps over the time that their bytes need: store and workers have 100 Mbit/s, the coordinator 1."""
    import relay
    from swarm import Swarm
    names = [f"w{i}" for i in range(rounds.WORKERS)]
    mbit = {"c": 1, "s": 100, **{n: 100 for n in names}}
    net = rounds.Net(list(mbit), {n: f"{rate}mbit" for n, rate in mbit.items() if n != "c"})
    swarm, store = Swarm(folder), None

    try:
        with net.inside("s"):
            store = relay.Store(os.path.join(folder, "store"), net.address["s"])
            store.relay.sums = {}
        with net.inside("c"):
            swarm.coordinator(*store.flags("bench"), "--listen", "0.0.0.0", "--host", net.address["c"], env=relay.KEY)
            for n in names:
                with net.inside(n):
                    swarm.worker(n, env={"no_proxy": "*"})
            job = swarm.submit(common.write_job(folder, **{**rounds.SIZE, "rounds": YOUNG + 3}, images=500))
            swarm.wait_round(job, YOUNG, ONE_S)
            net.shape("c", f"{mbit['c']}mbit")  # version 0 has come to the coordinator whole, once
            before = rounds.passed(net, mbit)
            first = swarm.job(job)["round"]
            done = swarm.wait_job(job, "done", ONE_S)
            after = rounds.passed(net, mbit)
            tasks = [t for t in swarm.get("/v1/tasks?limit=1000").json()["items"] if t["kind"] == "train"]
        steps, slowest = rounds.steps_of(swarm, names), {}
        for t in tasks:
            slowest[t["round"]] = max(slowest.get(t["round"], 0), steps[t["id"]])
        over = [r["seconds"] - slowest[r["round"]] for r in done["history"] if r["round"] > first]
        need, link = rounds.busiest(mbit, before, after, done["round"] - first)
        fig.add("round_overhead_slow_links", statistics.median(over) / need, "x", "<=1.1",
                f"of the {need:.2f} s that a round's bytes need on the busiest link ({link}); rounds take {min(over):.2f} to {max(over):.2f} s beyond their "
                "steps; four workers and the store at 100 Mbit/s, the coordinator at 1, workers fold")
    finally:
        swarm.stop()
        if store:
            store.stop()
        net.close()


def passed_of(common, folder, workers):
    """Blob bytes through the coordinator's link over the least possible, in the worse direction, for workers on sites of four."""
    from swarm import Swarm
    swarm = Swarm(folder)
    data = lambda: swarm.get("/v1/status").json()["bytes_here"]["data"]  # noqa: E731
    try:
        swarm.coordinator()
        for n in range(workers):
            swarm.worker(f"w{n}", "--share", f"site-{n // SITE}", "--share-at", "127.0.0.1")
        common.wait_until(lambda: len(swarm.get("/v1/workers").json()["items"]) == workers, ONE_S, "all workers")
        job = swarm.submit(common.write_job(folder, dim=128, depth=2, batch=1, images=200, replicas=workers, steps=2, rounds=SCALE_ROUNDS + 2))
        swarm.wait_round(job, YOUNG, ONE_S)
        first, before = swarm.job(job)["round"], data()
        swarm.wait_round(job, SCALE_ROUNDS, ONE_S)  # the end needs whole versions
        after, n = data(), swarm.job(job)["round"] - first
        version = max(swarm.get("/v1/modules").json()["items"][0]["versions"], key=lambda v: v["version"])
        up = sum(c["size"] for c in version["provenance"]["contributions"])
        down = version["delta"]["size"] * workers / SITE
        return max((after["up"] - before["up"]) / n / up, (after["down"] - before["down"]) / n / down)
    finally:
        swarm.stop()


def scale(fig, common, folder):
    worst = {n: passed_of(common, os.path.join(folder, str(n)), n) for n in SCALES}
    fig.add("rounds_scale", max(worst.values()), "x", "<=1.3",
            "blob bytes through the coordinator's link, the worse of both ways, over one contribution of each worker up and one delta for each site of "
            f"four down: {', '.join(f'{n} workers {x:.2f}' for n, x in worst.items())}")


def job_seconds(common, folder, mode, *flags):
    """(seconds of a job's rounds without the first ones, requests that failed, tasks that failed)."""
    import relay
    from swarm import Swarm
    store, swarm = relay.Store(os.path.join(folder, "store"), conditional=True), Swarm(folder)
    store.relay.silence_s = 30
    try:
        swarm.coordinator(*store.flags("bench"), *flags, env=relay.KEY)
        for n in "abcd":
            swarm.worker(n, "--throttle", "12")
        job = swarm.submit(common.write_job(folder, **FAULTY))
        swarm.wait_round(job, YOUNG, ONE_S)
        store.relay.mode, begun, first = mode, time.monotonic(), swarm.job(job)["round"]
        swarm.wait_job(job, "done", ONE_S)
        took = (time.monotonic() - begun) / (FAULTY["rounds"] - first)
        return took, store.relay.mishaps, sum(w["tasks_failed"] for w in swarm.get("/v1/workers").json()["items"])
    finally:
        swarm.stop()
        store.stop()


def faults(fig, common, folder, name, *flags):
    calm, _, _ = job_seconds(common, os.path.join(folder, "calm"), "ok", *flags)
    took, mishaps, failed = job_seconds(common, os.path.join(folder, "faulty"), "chance", *flags)
    fig.add(name, took / calm, "x", "<=1.3",
            f"503, 403, cuts, lost answers and 30 s of silence at {mishaps} requests, 5 % of all; rounds of {took:.2f} against {calm:.2f} s")
    fig.add(name + "_charged", failed, "tasks", "<=0", "failures charged to workers meanwhile")


def store_faults(fig, common, folder):
    faults(fig, common, folder, "store_faults")


def store_faults_state(fig, common, folder):
    """The same with the state in the store, too: each acknowledgement waits for the store."""
    faults(fig, common, folder, "store_faults_state", "--store-state")


def leased(swarm):
    return {int(w["task"]) for w in swarm.get("/v1/workers").json()["items"] if w["task"]}


def mid_commit(store, swarm, names, log):
    """Cuts the log off while leases run, and waits for phases to end: (the number of leases, tasks whose results were acknowledged by then)."""
    leases = leased(swarm)
    store.relay.refuse, store.relay.refuse_mode = "/state/log/", "silent"  # what comes from here on is never written
    time.sleep(2)  # an acknowledgement that does not wait for the log comes now
    return len(leases), {t for n in names for t in acknowledged(log(n))}


def moves(common, folder, store, old, new, job, names, log):
    """Kills a coordinator in the middle of a commit, removes its disk and starts another one: (seconds to the next lease, acknowledged results
    that are lost, leases at the time)."""
    from relay import KEY
    url, *rest = store.flags("bench")[1:]
    leases, told = mid_commit(store, old, names, log)
    begun = time.monotonic()
    old.kill("coordinatord")
    store.relay.refuse = None
    shutil.rmtree(old.data)
    subprocess.run([f"{common.BIN}/coordinatord", "--restore", url, "--data-dir", new.data, *rest], env={**os.environ, **KEY}, check=True,
                   stdout=subprocess.DEVNULL)
    new.ports = old.ports
    new.coordinator(*store.flags("bench"), "--store-state", env=KEY)
    before = leased(new)
    lost = [t for t in new.get(f"/v1/tasks?job={job}&limit=1000").json()["items"] if t["id"] in told and undone(t)]
    common.wait_until(lambda: leased(new) - before, ONE_S, "a new lease")
    return time.monotonic() - begun, len(lost), leases


def failover(fig, common, folder):
    import relay
    from swarm import Swarm
    store = relay.Store(os.path.join(folder, "store"), conditional=True)
    machines = [Swarm(os.path.join(folder, str(n))) for n in range(4)]
    try:
        first = machines[0]
        first.coordinator(*store.flags("bench"), "--store-state", env=relay.KEY)
        for n in range(BEYOND):
            first.worker(f"w{n}")
        job = first.submit(common.write_job(folder, batch=4, images=2000, replicas=BEYOND, steps=4, rounds=400))
        first.wait_round(job, YOUNG, ONE_S)
        names = [f"w{n}" for n in range(BEYOND)]
        took, lost, leases = zip(*(moves(common, folder, store, old, new, job, names, first.log) for old, new in zip(machines, machines[1:])))
        fig.add("failover_s", max(took), "s", "<=10",
                f"from SIGKILL to the next lease, {BEYOND} workers, the disk removed, another data dir from the store at the old address; the "
                f"longest of {len(took)}: {', '.join(f'{t:.1f}' for t in took)}")
        fig.add("failover_lost", sum(lost), "results", "<=0",
                "acknowledged before, and not known after; each was killed when the store had taken no commit for two seconds, with "
                f"{', '.join(map(str, leases))} leases")
    finally:
        for m in machines:
            m.stop()
        store.stop()


def split_brain(fig, common, folder):
    test = os.path.join(os.environ["SKERRY_BUILD"], "release", "tests", "unit", "common", "net", "s3", "test_log")
    said = subprocess.run([test], capture_output=True, text=True, timeout=ONE_S, check=True).stdout
    n, both, lost, takes, acked = map(int, re.search(
        r"partitions (\d+) acknowledged_by_both (\d+) lost (\d+) takeovers (\d+) acknowledged (\d+)", said).groups())
    fig.add("split_brain", both + lost, "entries", "<=0",
            f"acknowledged by two coordinators, or lost, in {n} random histories of three and a store that is cut off, loses answers and does things "
            f"late; {takes} take-overs, {acked} commits acknowledged")


def bits(fig, common, folder):
    """Versions that workers folded against those of the coordinator, of one module and of three, one of them shared."""
    import test_folds_at_workers as folds
    from swarm import Swarm
    differ, pairs, at_workers = 0, 0, 0
    for name, recipe in (("one", folds.DILOCO), ("shared", folds.SHARED)):
        swarm = Swarm(os.path.join(folder, name))
        try:
            swarm.coordinator()
            for n in "ab":
                swarm.worker(n)
            swarm.joined("a", "b")
            versions = []
            for where in ("coordinator", "worker"):
                job = folds.submit(swarm, where, recipe, rounds=5)
                swarm.wait_job(job, "done", ONE_S)
                versions.append(folds.made(swarm, job))
            steps = len(folds.given(swarm))
            assert steps >= 5 * len(versions[0]), f"workers made {steps} outer steps of {len(versions[0])} modules"
            differ, pairs, at_workers = differ + sum(a != b for a, b in zip(*versions)), pairs + len(versions[0]), at_workers + steps
        finally:
            swarm.stop()
    fig.add("bits", differ, "hashes", "<=0",
            f"that differ, of {pairs} modules' versions after five rounds: folded at the coordinator, and by {at_workers} outer steps on workers")


def slurm_preempt(fig, common, folder):
    """Steps that are lost where a real scheduler preempts two of three workers in mid-round, told before and as it ends."""
    import test_slurm
    from swarm import Swarm
    lost = []
    for grace in (12, 0):
        swarm = Swarm(os.path.join(folder, str(grace)))
        try:
            swarm.coordinator()
            slurm = test_slurm.Slurm(swarm, grace)
            with slurm.ending():
                lost += test_slurm.preempt(swarm, slurm, swarm.folder)[0]
        finally:
            swarm.stop()
    assert len(lost) == 4, f"{len(lost)} phases were left, expected two of three twice"
    fig.add("slurm_preempt", sum(lost), "steps", "<=0",
            f"made, and in no snapshot, of {len(lost)} phases whose worker was preempted in mid-round, with a grace time of 12 s and none")


def at(log, what):
    """The time of the first line of a log that has this pattern, in s."""
    line = next(x for x in log.splitlines() if re.search(what, x))
    return datetime.datetime.fromisoformat(line[:23]).timestamp()


def price_error(fig, common, folder):
    """The cost that is shown against what the logs of store and coordinator say, where workers fold and the state goes to the store."""
    import relay
    from swarm import Swarm
    hour, gigabyte, million = 36.0, 90.0, 400.0
    names = [f"w{i}" for i in range(PAID)]
    swarm, store = Swarm(folder), relay.Store(os.path.join(folder, "store"), conditional=True)
    store.relay.sums = {}
    try:
        swarm.coordinator(*store.flags("bench"), "--store-state", "--egress-price", str(gigabyte), "--request-price", str(million), env=relay.KEY)
        for n in names:
            swarm.worker(n, "--price", str(hour))
        swarm.joined(*names)
        job = swarm.submit(common.write_job(folder, dim=128, depth=4, batch=1, images=1000, replicas=PAID, steps=4, rounds=12))
        done = swarm.wait_job(job, "done", ONE_S)

        def same():  # the sign of life goes on
            before, status, after = store.relay.asked, swarm.get("/v1/status").json(), store.relay.asked
            return (status, after) if before == after else None
        status, asked = common.wait_until(same, ONE_S, "no request meanwhile")
        log = swarm.log("coordinatord")
        paid = at(log, f"job {job} .* is done") - at(log, f"job {job} .* was submitted")
        got = sum(size for by, method, code, size in list(store.relay.seen) if by == "worker" and method == "GET" and code in (200, 206))
        cost, here = done["cost"], status["bytes_here"]["data"]["down"]
        want = {"workers": paid * PAID * hour / 3600, "egress": (got + here) / 1e9 * gigabyte, "requests": asked / 1e6 * million}
        shown = {"workers": cost["work"] + cost["waiting"], "egress": cost["egress"], "requests": status["blob_store"]["request_dollars"]}
        fig.add("price_error", max(abs(shown[k] / want[k] - 1) for k in want) * 100, "%", "<=1",
                "the worst of " + ", ".join(f"{k} {100 * (shown[k] / want[k] - 1):+.2f} %" for k in want) + f": {PAID} workers for {paid:.0f} s, "
                f"{got / 1e6:.1f} MB from the store and {here / 1e6:.1f} from the coordinator, {asked} requests")
    finally:
        swarm.stop()
        store.stop()


PARTS = {  # its limit in seconds, what measures it, and all figures that it adds
    "coordinator_bytes_per_round": (700, coordinator_bytes, "coordinator_bytes_with_store"), "failover_s": (400, failover, "failover_lost"),
    "split_brain": (300, split_brain), "store_faults": (700, store_faults, "store_faults_charged"),
    "store_faults_state": (700, store_faults_state, "store_faults_state_charged"), "round_overhead_slow_links": (500, over_slow_links),
    "rounds_scale": (900, scale), "bits": (600, bits), "slurm_preempt": (600, slurm_preempt), "price_error": (400, price_error)}


def measure(fig, common, name):
    seconds, part, *more = PARTS[name]

    def in_a_folder():
        with tempfile.TemporaryDirectory(prefix="skerry-beyond-") as folder:
            part(fig, common, folder)
    measure_within(fig, (name, *more), seconds, in_a_folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", action="append", choices=PARTS)
    args = parser.parse_args()
    os.environ.update(SKERRY_BIN=os.path.join(args.build, "bin"), SKERRY_BUILD=args.build)
    import common
    fig = Figures()
    for name in args.only or PARTS:
        measure(fig, common, name)
    fig.write(os.path.join(args.build, "figures", "beyond.json"), keep=bool(args.only))
    return 0 if all(r["holds"] for r in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
