"""A worker's cable is pulled for minutes: prints a line of JSON for tests/bench/fault.py.

    unplugged.py --build build [--seconds 150]

Three workers for two replicas, a lease of 5 s.  At the end the ledger must balance."""
import argparse
import json
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), HERE]
from net import Net, apart  # noqa: E402
from oracle import BALANCE  # noqa: E402

WORKERS = ("w0", "w1", "w2")
SIZE = dict(dim=64, depth=2, batch=8, images=4000, rounds=100000, replicas=2, steps=150)
FLAGS = ("--heartbeat", "100ms", "--lease", "5s")
BACK = ("idle", "busy")


def training(swarm):
    return [t for t in swarm.get("/v1/tasks?state=leased").json()["items"] if t["kind"] == "train"]


def state_of(swarm, name):
    return next(w["state"] for w in swarm.get("/v1/workers").json()["items"] if w["name"] == name)


def run(swarm, net, common, seconds):
    swarm.coordinator("--listen", "0.0.0.0", "--host", net.address["c"], *FLAGS)
    for name in WORKERS:
        with net.inside(name):
            swarm.worker(name, "--throttle", "9")
    path = common.write_job(swarm.folder, **SIZE)
    text = open(path, encoding="utf-8").read().replace("outer: {", "outer: {snapshot: 1, ")
    open(path, "w", encoding="utf-8").write(text)
    job = swarm.submit(path)
    swarm.wait_round(job, 1, 120)
    victim = common.wait_until(lambda: next((t for t in training(swarm) if t["steps_done"] > 20), None), 60, "a phase")
    before, pulled = swarm.job(job)["round"], time.monotonic()
    net.plug(victim["worker_name"], False)
    common.wait_until(lambda: any(t["id"] == victim["id"] and t["attempt"] > victim["attempt"] for t in training(swarm)), 60, "another lease")
    leased = time.monotonic() - pulled
    while time.monotonic() < pulled + seconds:
        assert swarm.processes[victim["worker_name"]].poll() is None, f"it has ended:\n{swarm.tail(victim['worker_name'])}"
        time.sleep(0.5)
    assert state_of(swarm, victim["worker_name"]) not in BACK
    rounds, plugged = swarm.job(job)["round"] - before, time.monotonic()
    net.plug(victim["worker_name"], True)
    common.wait_until(lambda: state_of(swarm, victim["worker_name"]) in BACK, 120, "it to be back")
    back = time.monotonic() - plugged
    for name in WORKERS:
        swarm.kill(name, 15)
    common.wait_until(lambda: swarm.get("/v1/status").json()["tasks"]["leased"] == 0, 90, "nothing to be under way")
    done = swarm.skerry("audit", job, "--data-dir", swarm.data)
    assert done.returncode == 0, done.stdout + done.stderr
    settled, leased_now, _, folded, left = map(int, BALANCE.search(done.stdout).groups())
    return {"leased_s": leased, "back_s": back, "rounds": rounds, "down_s": seconds, "unbalanced": abs(settled - folded - left) + leased_now}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--seconds", type=float, default=150)
    args = p.parse_args()
    apart()
    os.environ["SKERRY_BIN"] = os.path.abspath(f"{args.build}/bin")
    import common
    from swarm import Swarm
    with tempfile.TemporaryDirectory(prefix="skerry-unplugged-") as folder:
        net, swarm = Net(["c", *WORKERS]), Swarm(folder)
        try:
            with net.inside("c"):
                print(json.dumps(run(swarm, net, common, args.seconds)))
        finally:
            swarm.stop()
            net.close()


if __name__ == "__main__":
    main()
