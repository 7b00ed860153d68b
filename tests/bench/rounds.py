"""What a round costs beyond its steps: four workers and a coordinator in network namespaces, on links of any rate.

The steps' own time of a round is that of the slowest of its four phases, as its worker measured it step by step: the round
waits for that one alone, whatever the others do meanwhile on the same cores."""
import contextlib
import ctypes
import os
import re
import statistics
import subprocess
import uuid

from bench import dataset, write_job

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
WORKERS, STEPS, ROUNDS, YOUNG = 4, 20, 10, 3  # the first rounds make files and learn what steps take
SIZE = dict(dim=256, depth=6, batch=4, replicas=WORKERS, steps=STEPS, rounds=ROUNDS)  # 7.4 M parameters
WAYS = {  # name: rate of each link, what the job says of its outer steps, bound in seconds
    "round_overhead_s": (None, "", 0.25),
    "round_overhead_100mbit_s": ("100mbit", "", 1.45),
    "round_overhead_fragments_s": ("100mbit", "fragments: 4, delay: 10, ", 0.3),
}
ONE_S = 150  # for each of them


class Net:
    """A bridge with a namespace at each end: `hub` and as many others as there are names."""

    def __init__(self, names, rate):
        self.made = []
        self.tag = "sk" + uuid.uuid4().hex[:6]
        self.address = {n: f"10.213.77.{i + 1}" for i, n in enumerate(names)}
        try:
            self.hub = self._space("hub")
            self._in(self.hub, "ip link add name hub0 type bridge")
            self._in(self.hub, "ip link set dev hub0 up")
            for n in names:
                self._join(n, rate)
        except BaseException:
            self.close()
            raise

    def _run(self, line):
        done = subprocess.run(line.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
        if done.returncode != 0:
            raise OSError(f"`{line}`: {done.stdout.strip()}")

    def _in(self, space, line):
        self._run(f"ip netns exec {space} {line}")

    def _space(self, name):
        space = f"{self.tag}-{name}"
        self._run(f"ip netns add {space}")
        self.made.append(space)
        self._in(space, "ip link set lo up")
        return space

    def _join(self, name, rate):
        space = self._space(name)
        self._in(self.hub, f"ip link add name to-{name} type veth peer name out netns {space}")
        self._in(self.hub, f"ip link set dev to-{name} master hub0 up")
        self._in(space, f"ip addr add {self.address[name]}/24 dev out")
        self._in(space, "ip link set dev out up")
        if rate:  # both ways: what leaves each end of the cable
            for where, end in ((space, "out"), (self.hub, f"to-{name}")):
                self._in(where, f"tc qdisc add dev {end} root tbf rate {rate} burst 128kb latency 100ms")

    @contextlib.contextmanager
    def inside(self, name):
        """What this thread opens and starts meanwhile is in the namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        space = os.open(f"/run/netns/{self.tag}-{name}", os.O_RDONLY)
        try:
            self._enter(space)
            yield
        finally:
            self._enter(before)
            os.close(before)
            os.close(space)

    @staticmethod
    def _enter(fd):
        if LIBC.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def close(self):
        for space in self.made:  # what is in them goes along
            subprocess.run(["ip", "netns", "del", space], check=False)


def job_file(folder, outer):
    path = write_job(folder, data=dataset.make(os.path.join(folder, "data"), classes=2, images=2000), **SIZE)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("outer: {", "outer: {" + outer)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def steps_of(swarm, names):
    """{task: seconds of its steps alone}, as the workers say."""
    said = r"times of task=(\d+):.* steps ([0-9.]+)"
    return {int(task): float(s) for n in names for task, s in re.findall(said, swarm.log(n))}


def run(swarm, net, names, outer):
    """(seconds, seconds of the slowest phase's steps) of each round but the first ones."""
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
    """A row for each way; make_swarm(name) gives a swarm in a folder of its own."""
    names = [f"w{i}" for i in range(WORKERS)]
    for name, (rate, outer, bound) in WAYS.items():
        net = swarm = None
        try:
            net = Net(["c", *names], rate)
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
