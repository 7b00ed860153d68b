"""The traffic that an object store takes off the coordinator, and the cost of its faults: prints a table, writes build/figures/beyond.json.

    beyond.py --build build [--only NAME ...]

The store is OpenStack Swift in one process (tests/integration/object_store.py), behind a relay in this one; daemons are real."""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "integration")]
from bench import Figures  # noqa: E402
import rounds  # noqa: E402

BEYOND, YOUNG = 8, 2  # workers; rounds that make files and learn what steps take
SIZES = {"7.4 M": dict(dim=256, depth=6), "1.3 M": dict(dim=128, depth=4)}  # parameters
FAULTY = dict(dim=64, depth=2, batch=8, images=4000, replicas=4, rounds=12, steps=100)  # a round is some seconds
ONE_S = 280
SITE, SCALES, SCALE_ROUNDS = 4, (4, 16, 64), 20


def each_way():
    """Bytes that have passed the network interface `out` of this thread's namespace: (received, sent)."""
    with open("/proc/thread-self/net/dev", encoding="utf-8") as f:
        (line,) = [x for x in f if x.strip().startswith("out:")]
    fields = line.split(":")[1].split()
    return int(fields[0]), int(fields[8])


def counted():
    return sum(each_way())


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

    def passed():
        now = {}
        for n in mbit:
            with net.inside(n):
                now[n] = each_way()
        return now

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
            before = passed()
            first = swarm.job(job)["round"]
            done = swarm.wait_job(job, "done", ONE_S)
            after = passed()
            tasks = [t for t in swarm.get("/v1/tasks?limit=1000").json()["items"] if t["kind"] == "train"]
        steps, slowest = rounds.steps_of(swarm, names), {}
        for t in tasks:
            slowest[t["round"]] = max(slowest.get(t["round"], 0), steps[t["id"]])
        over = [r["seconds"] - slowest[r["round"]] for r in done["history"] if r["round"] > first]
        need, link = max(((after[n][way] - before[n][way]) * 8e-6 / rate / (done["round"] - first), f"{n}, {('in', 'out')[way]}")
                         for n, rate in mbit.items() for way in (0, 1))
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


def moves(common, folder, store, old, new, job):
    """Kills a coordinator, removes its disk and starts another one: (seconds to the next lease, samples of acknowledged phases that are lost)."""
    from relay import KEY
    url, *rest = store.flags("bench")[1:]
    leased = lambda swarm: {int(w["task"]) for w in swarm.get("/v1/workers").json()["items"] if w["task"]}  # noqa: E731
    newest = max(common.wait_until(lambda: leased(old), ONE_S, "leases"))
    seen = lambda swarm: sum(e["done"] for e in swarm.job(job)["epochs"])  # noqa: E731
    before = seen(old)
    begun = time.monotonic()
    old.kill("coordinatord")
    shutil.rmtree(old.data)
    subprocess.run([f"{common.BIN}/coordinatord", "--restore", url, "--data-dir", new.data, *rest], env={**os.environ, **KEY}, check=True,
                   stdout=subprocess.DEVNULL)
    new.ports = old.ports
    new.coordinator(*store.flags("bench"), "--store-state", env=KEY)
    after = seen(new)
    common.wait_until(lambda: max(leased(new), default=0) > newest, ONE_S, "a new lease")
    return time.monotonic() - begun, max(0, before - after)


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
        took, lost = zip(*(moves(common, folder, store, old, new, job) for old, new in zip(machines, machines[1:])))
        fig.add("failover_s", max(took), "s", "<=10",
                f"from SIGKILL to the next lease, {BEYOND} workers, the disk removed, another data dir from the store at the old address; the "
                f"longest of {len(took)}: {', '.join(f'{t:.1f}' for t in took)}")
        fig.add("failover_lost", sum(lost), "samples", "<=0", "acknowledged before, and not known after")
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


PARTS = {"coordinator_bytes_per_round": coordinator_bytes, "failover_s": failover, "split_brain": split_brain, "store_faults": store_faults,
         "store_faults_state": store_faults_state, "round_overhead_slow_links": over_slow_links, "rounds_scale": scale}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", action="append", choices=PARTS)
    args = parser.parse_args()
    os.environ.update(SKERRY_BIN=os.path.join(args.build, "bin"), SKERRY_BUILD=args.build)
    import common
    fig = Figures()
    for name in args.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="skerry-beyond-") as folder:
            try:
                PARTS[name](fig, common, folder)
            except (OSError, AssertionError, RuntimeError) as e:
                fig.add(name, None, "", "<=0", f"not measured: {e}")
    fig.write(os.path.join(args.build, "figures", "beyond.json"), keep=bool(args.only))
    return 0 if all(r["holds"] for r in fig.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
