"""Workers of one site fetch each blob once from the coordinator, and then serve each other."""
from swarm import swarm  # noqa: F401  (fixture)
from test_faults import epochs_add_up

SHARE = ("--share", "hall", "--share-at", "127.0.0.1")


def down(swarm):
    return swarm.get("/v1/status").json()["bytes_here"]["data"]["down"]


def train(swarm, names, *flags, **keys):
    """Runs a job with new workers of these names: (bytes that passed the coordinator, the last version)."""
    before = down(swarm)
    for name in names:
        swarm.worker(name, *flags)
    swarm.joined(*names)
    job = swarm.submit(rounds=5, replicas=len(names), dim=64, **keys)
    swarm.wait_job(job, "done")
    epochs_add_up(swarm.job(job))
    for name in names:
        swarm.kill(name)
    return down(swarm) - before, swarm.job(job)["modules"][0]["sha256"]


def test_down_once(swarm):
    """Three workers cost the coordinator little more than one, and train the same bits; without the flag nothing changes."""
    swarm.coordinator() if swarm.ports is None else None
    alone, bits = train(swarm, "abc")
    shared, same = train(swarm, "def", *SHARE)
    assert same == bits
    assert 0 < shared < 0.6 * alone, (shared, alone)
    elsewhere = [w for w in swarm.get("/v1/workers").json()["items"] if w["tasks_failed"]]
    assert not elsewhere, elsewhere


def test_the_sharer_is_lost(swarm):
    """The worker that serves the others is killed again and again: they go on with the coordinator, and no worker is blamed."""
    for name in "abc":
        swarm.worker(name, *SHARE)
    swarm.joined(*"abc")
    job = swarm.submit(rounds=12, replicas=3, steps=20)
    for n, name in enumerate("abc"):
        swarm.wait_round(job, 2 * n + 2)
        swarm.kill(name)
        swarm.worker(name, *SHARE)
    swarm.wait_job(job, "done")
    epochs_add_up(swarm.job(job))
    workers = swarm.get("/v1/workers").json()["items"]
    assert all(w["state"] != "quarantined" and w["tasks_failed"] == 0 for w in workers), workers
