"""The cost of a job, compared with the coordinator's log, and the effects of its budget and of a token's quota."""
import datetime
import json
import re
import signal

from common import wait_until
from swarm import swarm  # noqa: F401

PRICES = {"dear": 36.0, "cheap": 9.0}  # dollars an hour: a cent, a quarter of one, a second


def at(log, what):
    """The time of the first line of the log that has this pattern, in s."""
    for line in log.splitlines():
        if re.search(what, line):
            return datetime.datetime.fromisoformat(line[:23]).timestamp()
    raise AssertionError(f"'{what}' is not in the log")


def cost(swarm, job):
    return swarm.job(job)["cost"]


def test_a_job_pays_for_the_time_of_its_workers(swarm):
    assert swarm.skerry("cost").stdout == "no jobs; `skerry submit job.yaml` starts one\n"
    for name, price in PRICES.items():
        swarm.worker(name, "--price", f"{price}/h", "--throttle", "20")
    swarm.joined(*PRICES)
    assert "workers without a task now: $45.00 an hour\n" in swarm.skerry("cost").stdout
    job = swarm.submit(rounds=3, steps=60)  # a moment is a small part of it

    def of_both():
        now = cost(swarm, job)
        return now if now["workers"] == 2 else None
    assert wait_until(of_both, 60, "both workers to work for the job")["per_hour"] == sum(PRICES.values())
    swarm.wait_job(job, "done")
    # Both have worked for nobody else: all their time since its submission is its.
    begun, ended = datetime.datetime.fromisoformat(swarm.job(job)["created_at"]).timestamp(), at(swarm.log("coordinatord"), f"job {job} .* is done")
    want = (ended - begun) * sum(PRICES.values()) / 3600
    got = cost(swarm, job)
    assert got["workers"] == 0 and got["work"] > 0 and got["waiting"] > 0
    assert abs(got["total"] - want) <= 0.01 * want, (got, want)
    assert got["per_million_samples"] > 0
    text = swarm.skerry("cost", job).stdout
    assert f"job {job}, " in text and "work" in text and "waiting" in text, text
    assert json.loads(swarm.skerry("cost", job, "--json").stdout)["total"] == got["total"]
    assert "$" in swarm.skerry("cost").stdout
    assert "a million samples" in text and got["per_million_tokens"] is None, text
    assert f", ${got['per_million_samples']:.2f} a million samples" in swarm.skerry("status", job).stdout
    assert json.loads(swarm.skerry("cost", "--json").stdout) == {
        "items": [{"id": job, "name": "tiny", "state": "done", "dollars": got["total"]}], "request_dollars": None, "idle_per_hour": sum(PRICES.values())}


def test_a_spent_budget_waits_for_more(swarm):
    swarm.worker("a", "--price", "$3600")  # a dollar a second
    job = swarm.submit(rounds=4, steps=200)
    wait_until(lambda: cost(swarm, job)["work"] > 0, 60, "the job to cost something")
    swarm.kill("a", signal.SIGSTOP)  # it costs as much, and does not end the job meanwhile
    assert len(swarm.skerry("adjust", job, "--budget", "1000").stdout.splitlines()) == 1
    said = swarm.skerry("adjust", job, "--budget", "0.01").stdout.splitlines()
    assert said[0] == f"job {job} has priority 0, share 1 and a budget of $0.01 now"
    assert re.fullmatch(r"its workers have cost \$[0-9.]+ already: tasks that run are finished, and no others are given out until the budget is raised", said[1])
    stalled = wait_until(lambda: swarm.job(job)["stalled"], 60, "the budget to be spent")
    assert "budget is spent" in stalled
    wait_until(lambda: any("budget is spent" in w["why"] for w in swarm.get("/v1/status").json()["waiting_for"]), 20, "the status to say so")
    assert swarm.job(job)["round"] < 4
    assert f"`skerry resume {job}` lets it go on" in swarm.skerry("pause", job).stdout
    swarm.kill("a", signal.SIGCONT)
    swarm.skerry("adjust", job, "--budget", "0")
    for told in (swarm.skerry("status").stdout, swarm.skerry("status", job).stdout):
        assert "paused" in told and f"a person has paused it; `skerry resume {job}` lets it go on" in told, told
    assert swarm.skerry("resume", job).stdout == f"job {job} goes on\n"
    swarm.wait_job(job, "done")
    refused = swarm.skerry("adjust", job, "--share", "2")
    assert refused.returncode == 1 and "has ended, it is done" in refused.stderr


def test_a_token_has_so_many_jobs(swarm):
    mine = swarm.token
    token = swarm.skerry("tokens", "--new", "operator", "--name", "ann", "--jobs", "1", "--budget", "5").stdout.strip()
    swarm.token = token
    swarm.session.headers["Authorization"] = f"Bearer {token}"
    first = swarm.submit(rounds=1)
    folder = swarm.folder + "/job"
    refused = swarm.skerry("submit", f"{folder}/job.yaml")
    assert refused.returncode == 1 and "the token 'ann' may have 1 job at once, and 1 is active" in refused.stderr, refused.stderr
    assert swarm.skerry("cancel", first).returncode == 0
    swarm.submit(rounds=1)
    own = swarm.skerry("tokens", "--change", "ann", "--jobs", "2")
    assert own.returncode == 1 and "another operator" in own.stderr, own.stderr
    swarm.token = mine
    changed = swarm.skerry("tokens", "--change", "ann", "--jobs", "2", "--budget", "7.5")
    assert changed.stdout == "the token ann allows 2 jobs at once, a budget of $7.50 now\n", changed.stderr
    for flags, why in ((["--change", "ann"], "say what to change"), (["--change", "bob", "--jobs", "1"], "there is no token 'bob'"),
                       (["--change", "ann", "--uses", "3"], "bound a worker's token"), (["--jobs", "1"], "--change NAME"),
                       (["--new", "worker", "--change", "ann"], "only one of them")):
        refused = swarm.skerry("tokens", *flags)
        assert refused.returncode != 0 and why in refused.stderr, (flags, refused.stderr)
    ended = swarm.skerry("tokens", "--change", "ann", "--expires", "1s")
    assert ended.stdout.startswith("the token ann allows 2 jobs at once, a budget of $7.50 now; it ends in "), ended.stderr
    swarm.session.headers["Authorization"] = f"Bearer {token}"
    wait_until(lambda: swarm.get("/v1/jobs").status_code == 401, 20, "it to end")
    assert swarm.skerry("tokens", "--change", "ann", "--expires", "30d").returncode == 0
    swarm.token = token
    swarm.submit(rounds=1)
    listed = next(t for t in swarm.get("/v1/tokens").json()["items"] if t["name"] == "ann")
    assert (listed["jobs_max"], listed["budget"], listed["cost"]) == (2, 7.5, 0)
    assert "$0.00 of $7.50" in swarm.skerry("tokens").stdout


def test_bad_prices_and_adjustments(swarm):
    for name, price in (("a", "cheap"), ("b", "1e9/h"), ("c", "0")):
        swarm.worker(name, "--price", price)
        why = f"--price {price}: expected dollars an hour, such as 0.9/h, more than 0 and at most 1000000"
        wait_until(lambda: why in swarm.log(name), 20, "the price to be refused")  # noqa: B023
    job = swarm.submit(rounds=1)
    for flags, why in ((["--share", "0"], "--share"), (["--priority", "101"], "--priority"), ([], "say what to change")):
        refused = swarm.skerry("adjust", job, *flags)
        assert refused.returncode != 0 and why in refused.stderr, (flags, refused.stderr)
    assert swarm.post(f"/v1/jobs/{job}/adjust", {"share": "2"}).status_code == 400
    assert swarm.post("/v1/jobs/99/adjust", {"share": 2}).status_code == 404
    assert swarm.skerry("cancel", job).returncode == 0
    assert "no prices are set" in swarm.skerry("cost", job).stdout
