"""Runs a swarm through an hour of machine faults: prints each fault, and each requirement that did not hold.

    chaos.py --build build [--minutes 60] [--seed 1] [--show]

Real daemons, each in a network namespace, on links of 20 to 100 Mbit/s with a proxy between them; see docs/chaos.md.  The seed says what
happens when: --show prints that and does nothing.  The status is 0 when all holds that oracle.py asks for."""
import argparse
import collections
import heapq
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), HERE]
from net import Net, apart  # noqa: E402
from oracle import Oracle, mean_loss, samples_judged  # noqa: E402
from shim import Shim  # noqa: E402
from way import Proxy  # noqa: E402

WORKERS = ("w0", "w1", "w2", "w3")
RATES = {"w0": "100mbit", "w1": "100mbit", "w2": "50mbit", "w3": "20mbit"}
DISK_BYTES = {"c": 128 << 20, "w3": 512 << 20}  # of their own, so that they can be full; w3's is where its cache may grow to a quarter
# kind: (weight, seconds at least, at most); what lasts is undone after so long.
OF_WORKERS = {"kill": (4, 0.1, 3), "leave": (2, 0.1, 2), "stop": (3, 0.5, 6), "unplug": (2, 0.5, 6), "deaf": (1, 0.5, 5), "mute": (1, 0.5, 5),
              "cut": (2, 0, 0), "slow": (2, 2, 8), "full": (1, 1, 4)}
OF_COORDINATOR = {"kill": (3, 0.1, 3), "stop": (2, 0.5, 6), "flush": (3, 1, 5), "clock": (2, 1, 6), "full": (2, 1, 4)}
CALM_S = (1, 4)  # between two of the same machine
ALL_S = 60  # a run of so long has a fault of every kind
ENDS = 3  # rounds of another job, which goes first and comes to its end beside all this
AFTER_S, AFTER_ROUNDS = 90, 3  # so many rounds must go by, and so soon, once nothing happens any more;
AFTER_FIRST = 12  # or within so many times what the first round took, on a slow machine
CALM_SAMPLE_S = 1 / 500  # that a sample of the calm run may take
STEPS, BATCH, THROTTLE = 80, 8, 9  # a phase is about 2 s where nothing happens; the job has more rounds than there is time for
TINY = dict(dim=64, depth=2, batch=BATCH, images=2000, steps=STEPS, rounds=100000, replicas=len(WORKERS), eval_every=1, holdout=0.2)


def schedule(seed, seconds):
    """[(time, duration, kind, machine)], the same for the same seed: one fault at a time for each machine, several machines at once.
    Each machine meets all of its kinds, what no other worker has first, before chance says which come again."""
    rng, happens = random.Random(seed), []
    for whom in ("c", *WORKERS):
        kinds = {k: v for k, v in (OF_COORDINATOR if whom == "c" else OF_WORKERS).items() if k != "full" or whom in DISK_BYTES}
        to_come = rng.sample(list(kinds), len(kinds))
        to_come.sort(key=lambda k: whom != "c" and k == "full")
        at = rng.uniform(0, CALM_S[1])
        while True:
            kind = to_come.pop() if to_come else rng.choices(list(kinds), [w for w, _, _ in kinds.values()])[0]
            lasts = rng.uniform(*kinds[kind][1:])
            if at + lasts > seconds:
                break
            happens.append((at, lasts, kind, whom))
            at += lasts + rng.uniform(*CALM_S)
    return sorted(happens)


class Disk:
    """A small disk at `path`, which can be filled."""

    def __init__(self, path, size):
        self.ballast = os.path.join(path, "ballast")
        os.makedirs(path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)

    def fill(self):
        with open(self.ballast, "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(1 << 20))
            except OSError:
                pass

    def room(self):
        return os.statvfs(os.path.dirname(self.ballast)).f_bavail

    def empty(self):
        os.remove(self.ballast)


class Chaos:
    """A swarm and the faults that can happen to it: `begin_KIND` and `end_KIND` for each kind."""

    FLAGS = ("--heartbeat", "200ms", "--lease", "2s")

    def __init__(self, swarm, build, seed):
        self.swarm, self.rng, self.done = swarm, random.Random(seed), collections.Counter()
        self.net = Net(["c", "way", *WORKERS], RATES)
        address = self.net.address
        self.proxy = Proxy(lambda: self.net.inside("way"), address["way"], address["c"], [address[w] for w in WORKERS], seed)
        self.disks = {"c": Disk(swarm.data, DISK_BYTES["c"])}
        self.disks |= {w: Disk(self.work_dir(w), DISK_BYTES[w]) for w in WORKERS if w in DISK_BYTES}
        self.shim = Shim(build, os.path.join(swarm.folder, "shim"))

    def work_dir(self, name):
        return os.path.join(self.swarm.folder, f"work-{name}")

    def way(self, name):
        return self.proxy.ways[self.net.address[name]]

    def start(self, name, throttle=THROTTLE):
        if name == "c":
            self.swarm.coordinator("--listen", "0.0.0.0", "--host", self.net.address["way"], *self.FLAGS, env=self.shim.env)
            return
        with self.net.inside(name):
            self.swarm.worker(name, "--throttle", str(throttle), "--cache-limit", "300MB")

    def open(self):
        self.start("c")
        self.proxy.listen(self.swarm.ports["rpc_port"], self.swarm.ports["http_port"])

    def close(self):
        self.swarm.stop()
        self.proxy.close()
        for disk in self.disks.values():
            subprocess.run(["umount", "-l", os.path.dirname(disk.ballast)], check=False)
        self.net.close()

    def felt(self):
        """{(of the coordinator, kind): how often it was seen to do something}."""
        flushes, looks = self.shim.felt()
        felt = collections.Counter(self.done) + collections.Counter({(True, "flush"): flushes, (True, "clock"): looks})
        for way in self.proxy.ways.values():
            felt.update({(False, kind): way.felt[what] for kind, what in (("deaf", "down"), ("mute", "up"), ("slow", "late"), ("cut", "reset"))})
        return felt

    def daemon(self, name):
        return "coordinatord" if name == "c" else name

    def begin_kill(self, name):
        self.done[name == "c", "kill"] += self.swarm.kill(self.daemon(name)) == -signal.SIGKILL

    def end_kill(self, name):
        self.start(name)

    def begin_leave(self, name):
        status = self.swarm.kill(name, signal.SIGTERM)  # one that has just begun ends by it
        self.done[False, "leave"] += status == 0
        assert status in (0, -signal.SIGTERM), f"{name} was asked to leave and ended with {status}:\n{self.swarm.tail(name)}"

    end_leave = end_kill

    def begin_stop(self, name):
        self.swarm.kill(self.daemon(name), signal.SIGSTOP)

    def end_stop(self, name):
        with open(f"/proc/{self.swarm.processes[self.daemon(name)].pid}/stat", encoding="utf-8") as f:
            self.done[name == "c", "stop"] += f.read().rsplit(")", 1)[1].split()[0] == "T"
        self.swarm.kill(self.daemon(name), signal.SIGCONT)

    def begin_unplug(self, name):
        self.net.plug(name, False)

    def end_unplug(self, name):
        self.done[False, "unplug"] += not self.net.plugged(name)
        self.net.plug(name, True)

    def begin_deaf(self, name):
        self.way(name).shut = {"down"}

    def end_deaf(self, name):
        self.way(name).shut = set()

    def begin_mute(self, name):
        self.way(name).shut = {"up"}

    end_mute = end_deaf

    def begin_cut(self, name):
        self.proxy.cut(self.net.address[name])

    def end_cut(self, name):
        pass

    def begin_slow(self, name):
        self.way(name).delay, self.way(name).loss = self.rng.uniform(0.02, 0.2), self.rng.uniform(0, 0.1)

    def end_slow(self, name):
        self.way(name).delay = self.way(name).loss = 0

    def begin_full(self, name):
        self.disks[name].fill()
        self.done[name == "c", "full"] += self.disks[name].room() == 0

    def end_full(self, name):
        self.disks[name].empty()

    def begin_flush(self, _):
        self.shim.tell(flush_ms=self.rng.randrange(100, 3000))

    def end_flush(self, _):
        self.shim.tell(flush_ms=0)

    def begin_clock(self, _):
        self.shim.tell(clock_s=self.rng.randrange(-100000, 100000))

    def end_clock(self, _):
        self.shim.tell(clock_s=0)


def go(chaos, oracle, happens):
    """Makes the scheduled faults happen, and ends those that last."""
    begun, todo = time.monotonic(), []
    for n, (at, lasts, kind, whom) in enumerate(happens):
        heapq.heappush(todo, (at, n, "begin", kind, whom, lasts))
    while todo:
        at, n, part, kind, whom, lasts = heapq.heappop(todo)
        while time.monotonic() - begun < at:
            oracle.look()
        if part == "begin":
            heapq.heappush(todo, (at + lasts, n, "end", kind, whom, lasts))
        print(f"{time.monotonic() - begun:8.2f} s  {part:5} {kind:7} {whom}", flush=True)
        if whom == "c" and kind in ("kill", "stop"):
            oracle.rest(part == "begin")
        elif kind in ("kill", "leave"):
            oracle.away(whom, part == "begin")
        getattr(chaos, f"{part}_{kind}")(whom)


def judge_faults(chaos, seconds):
    """Each kind of fault must have done something: a run in which it did not says nothing of it."""
    kinds = [(of_coordinator, k) for of_coordinator, kinds in ((True, OF_COORDINATOR), (False, OF_WORKERS)) for k in kinds]
    felt = chaos.felt()
    print("felt: " + ", ".join(f"{kind} of {'the coordinator' if c else 'a worker'} {felt[c, kind]}" for c, kind in kinds))
    missing = [f"{kind} of {'the coordinator' if c else 'a worker'}" for c, kind in kinds if not felt[c, kind]]
    assert seconds < ALL_S or not missing, f"faults that were not felt: {', '.join(missing)}"


def settle(swarm, oracle, job, other, first_s):
    """Waits, without further faults, until the long job makes progress and the other one is done."""
    within = max(AFTER_S, AFTER_FIRST * first_s)
    deadline, until = time.monotonic() + within, oracle.round + AFTER_ROUNDS
    while oracle.round < until or swarm.job(other)["state"] != "done":
        oracle.look()
        record = swarm.job(job)
        assert record["state"] == "running", f"the job is {record['state']}: {record['reason']}"
        assert time.monotonic() < deadline, (f"round {oracle.round} is not over {within:.0f} s after the last event, or the other job not done: "
                                             f"waiting for {record['waiting_for']}, and {swarm.job(other)['waiting_for']}")


def rest(chaos):
    """Stops all workers and waits until their contributions are folded."""
    import common  # with SKERRY_BIN set
    for w in WORKERS:
        chaos.begin_leave(w)
    common.wait_until(lambda: chaos.swarm.get("/v1/status").json()["tasks"]["leased"] == 0, AFTER_S, "nothing to be under way")


def calm(chaos, path, samples):
    """Runs the same job without faults and throttling until it has used so many samples; returns its record."""
    import common  # with SKERRY_BIN set
    for w in WORKERS:
        chaos.start(w, 1)
    job = chaos.swarm.submit(path)
    common.wait_until(lambda: mean_loss(chaos.swarm.job(job), samples), 60 + samples * CALM_SAMPLE_S, "the calm run")
    return chaos.swarm.job(job)


def write_jobs(common, folder):
    """Writes the job that goes on for the whole run, and one that ends and has priority."""
    path = common.write_job(folder, **TINY)
    other = os.path.join(folder, "ends.yaml")
    with open(path, encoding="utf-8") as f, open(other, "w", encoding="utf-8") as to:
        text = f.read()
        assert f"rounds: {TINY['rounds']}" in text
        to.write(text.replace(f"rounds: {TINY['rounds']}", f"rounds: {ENDS}") + "swarm: {priority: 1}\n")
    return path, other


def run(args, chaos, path, ends):
    swarm, happens = chaos.swarm, schedule(args.seed, 60 * args.minutes)
    chaos.open()
    oracle = Oracle(swarm, WORKERS)
    for w in WORKERS:
        chaos.start(w)
    job, begun = swarm.submit(path), time.monotonic()
    oracle.follow(job)
    swarm.wait_round(job, 1, 60)
    first_s = time.monotonic() - begun
    other = swarm.submit(ends)
    go(chaos, oracle, happens)
    judge_faults(chaos, 60 * args.minutes)
    settle(swarm, oracle, job, other, first_s)
    print(f"{len(happens)} events; {oracle.looks} looks, {oracle.unanswered} of them not answered")
    oracle.judge()
    rest(chaos)
    record = swarm.job(job)
    oracle.judge_ledger(record)
    oracle.judge_end(swarm.job(other), STEPS * BATCH * len(WORKERS) * ENDS)
    swarm.post(f"/v1/jobs/{job}/cancel")
    oracle.judge_loss(record, calm(chaos, path, samples_judged(record)))
    for line in oracle.told:
        print(line)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", action="store_true")
    args = p.parse_args()
    if args.show:
        for at, lasts, kind, whom in schedule(args.seed, 60 * args.minutes):
            print(f"{at:8.2f} s  {kind:7} {whom:3} {lasts:5.2f} s")
        return
    apart()
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    import common
    from swarm import Swarm
    with tempfile.TemporaryDirectory(prefix="skerry-chaos-") as folder:
        swarm = Swarm(folder)
        chaos = Chaos(swarm, args.build, args.seed)
        try:
            with chaos.net.inside("c"):
                run(args, chaos, *write_jobs(common, folder))
        except BaseException:
            for name in swarm.processes:
                print(f"---- {name}.log ----\n{swarm.tail(name)}")
            print(f"seed {args.seed}, {args.minutes:g} minutes: what did not hold is below")
            raise
        finally:
            chaos.close()
    print("all holds")


if __name__ == "__main__":
    main()
