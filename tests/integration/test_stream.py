"""Fragments and asynchronous folding with real daemons.

The identity: one replica, f32 both ways, outer lr 1, momentum 0, no delay.  Then a merge gives a fragment back the
weights that it has just contributed, so training goes its way as if there were no fragments.  A fragment's last version
is that of the step at which it last contributed: half-way through the last round for the first of two, its end for the
other.  Plain jobs of as many steps end with the same bits in the tensors of that fragment."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess

from common import HANGS, make_dataset, wait_until, write_job
from swarm import running, swarm  # noqa: F401  (fixture)

ROUNDS, STEPS = 3, 4


def equal_images(folder, n=24):
    make_dataset(folder, classes=1, images=1)
    where = os.path.join(folder, "disc")
    for i in range(1, n):
        shutil.copy(os.path.join(where, "00000.png"), os.path.join(where, f"{i:05d}.png"))


def stream_job(folder, outer="", **keys):
    """Writes a job file with more keys in its outer section."""
    path = write_job(folder, **keys)
    text = open(path, encoding="utf-8").read().replace("outer: {", f"outer: {{{outer}", 1)
    text = text.replace("train: {", "train: {schedule: constant, ", 1)  # jobs of unlike lengths are compared
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def tensors(path):
    """name -> bytes of a safetensors file."""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in header.items() if k != "__metadata__"}


def test_fragments_are_plain_training(swarm, tmp_path):
    equal_images(os.path.join(tmp_path, "job", "data"))
    swarm.worker("a")

    def train(rounds, steps, outer=""):
        job = swarm.submit(stream_job(tmp_path / "job", outer, data=False, rounds=rounds, steps=steps, replicas=1, lr=1,
                                      momentum=0, ema=0, up="f32", down="f32", holdout=0))
        done = swarm.wait_job(job, "done")
        out = tmp_path / f"model-{job}"
        exported = swarm.skerry("export", job, "--out", out, "--raw")
        assert exported.returncode == 0, exported.stderr
        return done, tensors(out / "model.safetensors")

    done, cut = train(ROUNDS, STEPS, "fragments: 2, ")
    assert [m["version"] for m in done["modules"]] == [ROUNDS, ROUNDS]
    steps = {0: (ROUNDS - 1) * STEPS + STEPS // 2, 1: ROUNDS * STEPS}  # of each fragment's last version
    for fragment, n in steps.items():
        _, plain = train(1, n)
        mine = [k for k in plain if re.match(rf"blocks\.{fragment}\.", k)]
        mine += [k for k in plain if not k.startswith("blocks.") and k.startswith("final") == (fragment == 1)]
        assert len(mine) > 10
        for k in mine:
            assert cut[k] == plain[k], f"{k} after {n} steps"
        assert any(cut[k] != plain[k] for k in plain), "the other fragment stands elsewhere"


def test_workers_come_and_go(swarm, tmp_path):
    for name in "ab":
        swarm.worker(name, "--throttle", "10")
    swarm.joined("a", "b")
    job = swarm.submit(stream_job(tmp_path / "job", "fragments: 2, delay: 2, mix: 0.5, ", rounds=6, steps=12, replicas=2))

    def ahead():
        versions = [m["version"] or 0 for m in swarm.job(job)["modules"]]
        return versions[0] > versions[-1] > 0

    wait_until(ahead, 60, "a fragment to be ahead of the other")
    swarm.kill("b")
    swarm.worker("b")
    done = swarm.wait_job(job, "done", 120)
    assert [m["version"] for m in done["modules"]] == [6, 6]
    records = [json.loads(line) for line in swarm.get(f"/v1/jobs/{job}/metrics").text.splitlines()]
    losses = [r["loss"] for r in records if r["kind"] == "round"]
    assert len(losses) == 6 and losses[-1] < losses[0], losses


def test_fewer_workers_than_replicas(swarm, tmp_path):
    """A fragment that waits for a replica without a worker does not hold up the only worker."""
    swarm.worker("a")
    job = swarm.submit(stream_job(tmp_path / "job", "fragments: 2, delay: 1, ", rounds=2, steps=6, replicas=3))
    done = swarm.wait_job(job, "done", 120)
    assert [m["version"] for m in done["modules"]] == [2, 2]


def test_auto_takes_what_hides_the_link(tmp_path):
    """auto chooses fragments where training would wait for the link; the choice and its reason are on record."""
    with running(tmp_path, "--lease", "10m") as swarm:
        auto_takes(swarm, tmp_path)


def auto_takes(swarm, tmp_path):
    for name in "ab":
        swarm.worker(name)
    first = swarm.submit(stream_job(tmp_path / "job", rounds=1, steps=2, dim=64))
    swarm.wait_job(first, "done")
    exported = swarm.skerry("export", first, "--out", tmp_path / "job" / "start")
    assert exported.returncode == 0, exported.stderr
    wait_until(lambda: any(w["flops"] for w in swarm.get("/v1/workers").json()["items"]), 20, "the time of a step to be told")
    for name in "ab":  # so that what they have told stays as it is: a step takes as long at each submission
        swarm.kill(name, signal.SIGSTOP)

    def submit(start, *flags, outer="fragments: auto, snapshot: 0, "):
        path = stream_job(tmp_path / "job", outer, data=False, rounds=2, steps=4000, dim=64, up="f32", down="f32")
        text = open(path, encoding="utf-8").read().replace("model: {", "model: {warm_start: start, " if start else "model: {")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = swarm.skerry("submit", path, *flags, "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        job = swarm.job(said["id"])
        assert swarm.skerry("cancel", said["id"]).returncode == 0
        return said.get("fragments"), job, path

    said, job, path = submit(True)  # loopback
    assert said["fragments"] == 1 and "a link of" in said["why"] and len(job["modules"]) == 1
    up = json.loads(swarm.skerry("check", path, "--json").stdout)["up_bytes"]
    step = float(re.search(r"a step of (\S+) s by the workers' FLOP/s", said["why"])[1])
    # A link that needs 600 of 4,000 steps for both replicas, both ways.  None is slower than 10 kbit/s, which steps of seconds would need: of
    # those it needs fewer.
    link = f"{max(10, 8 * 4 * up / (600 * step) / 1e3):.2f}kbit"
    said, job, _ = submit(True, "--link", link)
    assert said["fragments"] == 2 and said["delay"] > 0, said
    assert len(job["modules"]) == 2 and f"# outer.fragments was auto: {said['why']}\n" in job["spec"]
    said, job, _ = submit(False, "--link", link)  # a fresh one
    assert said["fragments"] == 1 and "fresh" in said["why"] and len(job["modules"]) == 1
    assert submit(False, "--link", link, outer="")[0] is None  # nobody asked


def test_async(swarm, tmp_path):
    for name in "ab":
        swarm.worker(name, "--throttle", "50")  # phases are longer than what lies between them
    swarm.joined("a", "b")
    job = swarm.submit(stream_job(tmp_path / "job", "async: true, ", rounds=4, steps=6, replicas=2))
    done = swarm.wait_job(job, "done", 120)
    assert [m["version"] for m in done["modules"]] == [4 * 2], "each contribution is a version"
    versions = swarm.get("/v1/modules").json()["items"][0]["versions"]
    made = [v["provenance"] for v in versions if v["version"] > 0]
    assert all(len(p["contributions"]) == 1 and p["delay"] == 2 for p in made)
    assert any(c["staleness"] > 0 for p in made for c in p["contributions"]), "two replicas at a time cannot both be the newest"


def test_unlike_workers(swarm, tmp_path):
    """Phases bounded by time: a slower worker makes fewer steps, and no worker waits."""
    swarm.worker("fast")
    swarm.worker("slow", "--throttle", "100")
    swarm.joined("fast", "slow")
    # So small that a step of the slow one is shorter than a phase on the slowest machine, too.
    path = stream_job(tmp_path / "job", "async: true, ", dim=16, depth=1, batch=4, rounds=4, steps=77, replicas=2)
    text = open(path, encoding="utf-8").read().replace("steps: 77", "seconds: 2")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    job = swarm.submit(path)
    names = {w["id"]: w["name"] for w in swarm.get("/v1/workers").json()["items"]}
    samples = {"fast": set(), "slow": set()}

    def both():  # the versions that are kept, of which each has one
        for v in swarm.get("/v1/modules").json()["items"][0]["versions"]:
            for c in v["provenance"].get("contributions", []):
                samples[names[c["worker"]]].add(c["samples"])
        return all(samples.values()) and (swarm.job(job)["modules"][0]["version"] or 0) >= 6
    wait_until(both, 60, "both to have contributed")
    assert max(samples["slow"]) * 2 < max(samples["fast"]), samples


def test_a_narrow_link(swarm, tmp_path):
    """At 500 kB/s training waits for the link, and the status tells."""
    swarm.worker("a", "--max-bandwidth", "4Mbit")
    job = swarm.submit(stream_job(tmp_path / "job", rounds=2, steps=2, replicas=1, dim=64))
    done = swarm.wait_job(job, "done", 120)
    network = done["network"]
    sent = done["bytes"]["per_param_up"] * done["parameters"] * 2
    assert network["waited_ms"] > 1000 * (sent - 25000 * 2) / 500000, (network, sent)
    assert 0 < network["waited_share"] < 1 and network["peak_bytes_per_s"] > 0
    bad = subprocess.run([swarm.processes["a"].args[0], "--join", "x", "--max-bandwidth", "fast"], stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert bad.returncode == 2 and "--max-bandwidth" in bad.stderr and "20Mbit" in bad.stderr
