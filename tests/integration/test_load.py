"""A load test with few workers: `make load` takes thousands."""
import json
import os
import sys

from swarm import running

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "load"))
import load  # noqa: E402

import common  # noqa: E402

BUILD = os.environ.get("SKERRY_BUILD", "build")
WORKERS, SECONDS = 100, 2
BEAT_S = 0.5


def test_a_hundred_workers(tmp_path):
    with running(tmp_path, "--heartbeat", f"{int(1000 * BEAT_S)}ms", "--lease", "10s") as swarm:
        (job,) = load.give_work(swarm, common, WORKERS)
        got = load.measure(swarm, BUILD, WORKERS, SECONDS)
        assert got["joined"] == got["busy"] == WORKERS
        assert got["late"] == got["lost"] == got["revoked"] == 0
        assert got["heartbeats"] >= WORKERS * SECONDS / BEAT_S / 2
        assert got["status_ms"], "the status was answered beside them"
        rows = [json.loads(line) for line in swarm.get(f"/v1/jobs/{job}/metrics").text.splitlines()]
        assert len({m["replica"] for m in rows if m["kind"] == "loss"}) == WORKERS, "what heartbeats told was kept"
