"""What `skerry check` says a job needs on disks, against what real daemons hold: the folders are walked while it runs."""
import json
import os
import threading

import pytest

from common import skerry, wait_until, write_job
from swarm import running, swarm  # noqa: F401

KEPT = 32  # bytes a parameter at a worker, beside its cache: two checkpoints of a phase's end, two residuals


def size(folder):
    """Of the files; none counts twice that has several names."""
    seen = {}
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(at, name))
            except FileNotFoundError:
                continue  # it went meanwhile
            seen[stat.st_ino] = stat.st_size
    return sum(seen.values())


class Peaks(threading.Thread):
    """The most that each folder held."""

    def __init__(self, folders):
        super().__init__(daemon=True)
        self.most, self.over = dict.fromkeys(folders, 0), threading.Event()

    def run(self):
        while not self.over.wait(0.01):
            for folder in self.most:
                self.most[folder] = max(self.most[folder], size(folder))


ASYNC = ("outer: {", "outer: {async: true, ")
EXPERTS = ("recipe: {name: diloco, replicas: 2}", """recipe: {name: ddm, experts: 3, divide_batch: false}
router: {dim: 32, depth: 2, heads: 2}
partition: {dims: 8, fine: 8}""")


@pytest.mark.parametrize("replicas, keys, edit", [
    (3, {}, None), (2, {"up": "bf16", "down": "int8"}, None), (3, {"rounds": 2}, None), (2, {"up": "int8", "rounds": 8}, ASYNC),
    (2, {"images": 128}, EXPERTS)], ids=["e3m0", "bf16", "two-rounds", "async", "experts"])
def test_disks_hold_what_check_says(tmp_path, replicas, keys, edit):
    job = write_job(tmp_path, **{"dim": 128, "depth": 5, "rounds": 6, "batch": 4, "replicas": replicas, "images": 64, **keys})
    if edit:
        with open(job, "r+", encoding="utf-8") as f:
            text = f.read()
            assert edit[0] in text
            f.seek(0)
            f.truncate()
            f.write(text.replace(*edit))
    said = json.loads(skerry("check", job, "--json", "--workers", replicas).stdout)
    need, cache = said["disk"], said["disk"]["worker_bytes"] - KEPT * said["parameters"]
    with running(tmp_path / "swarm") as s:
        names = [f"w{i}" for i in range(replicas)]
        for name in names:
            s.worker(name, "--cache-limit", str(cache))
        s.joined(*names)
        peaks = Peaks([s.data] + [os.path.join(s.folder, f"work-{name}") for name in names])
        peaks.start()
        s.wait_job(s.submit(job), "done")
        peaks.over.set()
        peaks.join()
        print(need, said["parameters"], peaks.most)
        assert 0.7 < peaks.most.pop(s.data) / need["peak_bytes"] < 1.4
        assert 0.7 < max(peaks.most.values()) / need["worker_bytes"] < 1.4
        # What is not needed any more goes a moment after the end
        wait_until(lambda: 0.7 < size(s.data) / need["end_bytes"] < 1.4, 20, "the coordinator to hold what it is said to")


def test_submit_warns_of_a_disk_that_is_too_small(swarm, tmp_path):  # noqa: F811
    """Of a model that would fill the disk of any machine that runs this; nobody is here to make it."""
    done = swarm.skerry("submit", write_job(tmp_path, dim=8192, depth=256, heads=64))
    assert done.returncode == 0, done.stderr
    warned = done.stderr.splitlines()[-1]
    assert warned.startswith("skerry: the disk of the coordinator has room for ") and "make room" in warned


def test_workers_tell_their_room(swarm):  # noqa: F811
    swarm.worker("a")
    room = wait_until(lambda: [w["disk_room_bytes"] for w in swarm.get("/v1/workers").json()["items"] if w["disk_room_bytes"]], 30, "a to tell its room")
    free = os.statvfs(swarm.folder)
    assert 0.5 < room[0] / (free.f_bavail * free.f_frsize) < 2 and 0.5 < swarm.get("/v1/status").json()["disk_room_bytes"] / room[0] < 2
