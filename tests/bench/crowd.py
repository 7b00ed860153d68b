"""The load of many workers and many requests on a coordinator: figures of fault.py.  The workers are those of tests/load."""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "fault"), os.path.join(HERE, "..", "load")]
from attack import submit  # noqa: E402
from shim import Shim  # noqa: E402

SLOW = ("--heartbeat", "5s", "--lease", "30s")


def open_tasks(fig, swarm_of, common, build, workers):
    """kill -9 of a coordinator that has given a task to each of many workers."""
    import load  # with SKERRY_BIN set
    workers = load.fit(workers)
    with swarm_of(*SLOW) as swarm:
        load.give_work(swarm, common, workers)
        with load.fleet(swarm, build, workers, 30) as (process, _):
            held = swarm.get("/v1/status").json()["tasks"]["leased"]
            swarm.kill("coordinatord")
            begun, players = time.monotonic(), load.cpu_seconds(process.pid)
            swarm.coordinator(*SLOW)
            common.wait_until(lambda: swarm.get("/v1/status").status_code == 200, 60, "an answer")
            served = time.monotonic() - begun
            got = json.loads(process.stdout.readline())
            players, own = load.cpu_seconds(process.pid) - players, load.cpu_seconds(swarm.processes["coordinatord"].pid)
        left = swarm.get("/v1/status").json()["tasks"]["leased"]
        lost = swarm.log("coordinatord").count("is lost")
    fig.add("killed_with_open_tasks", served, "s", "<=1", f"{held} tasks leased; until it answers again")
    fig.add("reconnected", got["away_ms"] / 1e3 if got["here"] == workers else None, "s", "<=15",
            f"from the first cut until all are here; {got['here']} of {workers} in the end; within 30 s the process that plays them used "
            f"{players:.1f} s of a processor, the coordinator {own:.1f} s")
    fig.add("leases_lost_in_reconnect", got["revoked"] + held - left, "leases", "<=0", f"of {held}; {lost} workers given up")


class Asking(threading.Thread):
    """Sends the given requests again and again until it is told to stop."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.ask, self.asked, self.ends = ask, 0, threading.Event()
        self.start()

    def run(self):
        while not self.ends.is_set():
            self.ask()
            self.asked += 1

    def stop(self):
        self.ends.set()
        self.join()


def at_share(turns, share):
    """The quantile of the durations of the loop's turns at this share, in ms."""
    left = share * sum(turns)
    for ms, n in enumerate(turns):
        left -= n
        if left <= 0:
            return ms
    return len(turns)


def turns(fig, swarm_of, common, build):
    """The duration of the loop's turns under 1,000 busy workers with points, uploads, and requests for whole lists."""
    import load  # with SKERRY_BIN set
    from attack import client, put
    with tempfile.TemporaryDirectory() as folder, swarm_of("--heartbeat", "1s", "--lease", "30s", env=(shim := Shim(build, f"{folder}/shim")).env) as swarm:
        load.give_work(swarm, common, 1000)
        with load.fleet(swarm, build, 1000, 25) as (process, _):
            before = shim.turns()
            asking = [*(Asking(lambda s=client(swarm), n=n: put(swarm, s, n)) for n in (4 << 20, 1 << 16)),
                      *(Asking(lambda p=p: swarm.get(p)) for p in ("/v1/status", "/v1/tasks?limit=1000", "/v1/workers?limit=1000", "/metrics"))]
            process.stdout.readline()
            for a in asking:
                a.stop()
            seen = [b - a for a, b in zip(before, shim.turns())]
    puts, asked = sum(a.asked for a in asking[:2]), sum(a.asked for a in asking[2:])
    longest = max(ms for ms, n in enumerate(seen) if n)
    fig.add("turn_p99", at_share(seen, 0.99), "ms", "<=20", f"of {sum(seen)} turns of the loop in 25 s: 1,000 busy workers, {puts} uploads, {asked} pages")
    fig.add("turn_longest", longest, "ms", "<=100", f"{sum(seen[101:])} above 100 ms")


DAY_ROUNDS = 24 * 60  # as a day has of a minute
MIB = 1 << 20


def churn(fig, swarm_of, common):
    """The growth of a coordinator's memory and database over a day's number of rounds, with two workers that are killed in turns."""
    import load  # with SKERRY_BIN set
    with swarm_of("--heartbeat", "100ms") as swarm:
        names, kills, seen = ("w0", "w1"), 0, []
        for name in names:
            swarm.worker(name)
        job = submit(swarm, common, dim=32, steps=2, replicas=2, images=400, rounds=100000)
        until = time.monotonic() + 240
        while time.monotonic() < until and (not seen or seen[-1][0] < DAY_ROUNDS):
            time.sleep(0.5)
            swarm.kill(names[kills % 2])
            swarm.worker(names[kills % 2])
            kills += 1
            seen.append((swarm.job(job)["round"], load.resident(swarm.processes["coordinatord"].pid), os.path.getsize(f"{swarm.data}/coordinator.db")))
    early = next(s for s in seen if s[0] >= seen[-1][0] / 3)
    rounds = seen[-1][0] - early[0]
    told = f"{seen[-1][0]} rounds of the {DAY_ROUNDS} of a day of minutes, {kills} kills; since round {early[0]}"
    fig.add("churn_memory", (seen[-1][1] - early[1]) / MIB, "MiB", "<=1", f"{seen[-1][1] / MIB:.1f} MiB resident after {told}")
    fig.add("churn_database", (seen[-1][2] - early[2]) / rounds, "B a round", "<=2048", f"{seen[-1][2] / MIB:.2f} MiB after {told}; the last 4,096 rounds are kept")


def failing(fig, build):
    """The coordinator's memory after three workers have failed a phase a thousand times: the job stalls, and goes on when a worker does it."""
    done = subprocess.run([f"{build}/release/tests/unit/coordinator/rpc/test_report"], capture_output=True, text=True, timeout=150, check=False)
    said = re.search(r"900 failures more hold (-?\d+) bytes more", done.stdout + done.stderr)
    fig.add("failing_memory", int(said.group(1)) / MIB if said and done.returncode == 0 else None, "MiB", "<=1",
            "heap after 1,000 failures of a phase over that after 100; stalled meanwhile, done when somebody is well (test_report.c)")


def apart(program, build):
    """What a program of tests/fault, in namespaces of its own, has measured."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "..", "fault", program), "--build", build], capture_output=True, text=True,
                          timeout=580, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"{program} said nothing"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def unplugged(fig, build):
    """A worker's cable is pulled for minutes."""
    got = apart("unplugged.py", build)
    fig.add("unplugged_to_lease", got["leased_s"], "s", "<=6", "lease 5 s")
    fig.add("plugged_to_back", got["back_s"], "s", "<=6", f"after {got['down_s']:.0f} s, in which the others made {got['rounds']} rounds")
    fig.add("unplugged_unbalanced", got["unbalanced"], "samples", "<=0", "lost or counted twice, as skerry audit finds")


def joining(fig, build):
    """The start of machines that join in the middle of a job, on links of 100 Mbit/s, and what it costs the others."""
    got = apart("joining.py", build)
    least, took, calm = 8 * got["bytes"] / 100e6, statistics.median(got["first_step_s"]), statistics.median(got["calm_s"])
    fig.add("joining", took - least, "s", "<=1", f"its first step {took:.2f} s after its start, the median of {len(got['first_step_s'])}, less the {least:.2f} s that "
            f"{got['bytes'] / 1e6:.0f} MB take at 100 Mbit/s; {statistics.median(got['fetched_s']):.2f} s of it were the transfer")
    late = [sum(pair) - 2 * calm for pair in got["met_s"]]
    fig.add("joining_beside", 100 * statistics.median(late) / calm, "%", "<=5", f"of a round of {calm:.2f} s, the others' delay in the round of a join and the next "
            f"one together, the median of {len(late)}: {', '.join(f'{s:+.2f}' for s in late)} s; calm rounds {min(got['calm_s']):.2f} to {max(got['calm_s']):.2f} s")
