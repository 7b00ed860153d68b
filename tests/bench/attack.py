"""The harm that malicious workers and strangers can do to a swarm: figures of fault.py, on real daemons."""
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import time

TINY = dict(dim=64, depth=2, batch=8, images=2000)
BEAT = ("--heartbeat", "100ms")
HONEST = ("w0", "w1", "w2")


@contextlib.contextmanager
def players(swarm, build, n, manner, seconds=600):
    """Starts n workers of tests/load/fleet.c and waits until they have joined."""
    keys = os.path.join(swarm.folder, f"keys-{manner}")
    os.makedirs(keys)
    process = subprocess.Popen([f"{build}/release/tests/load/fleet", "@" + os.path.join(swarm.data, "worker.token"), str(n), str(seconds),
                                keys, manner], stdout=subprocess.PIPE, text=True)
    try:
        if not process.stdout.readline():
            raise RuntimeError(f"the fleet that is to {manner} has not joined")
        yield process
    finally:
        process.kill()
        process.wait()


def submit(swarm, common, outer="", seed=None, **keys):
    path = common.write_job(swarm.folder, **{**TINY, **keys})
    text = open(path, encoding="utf-8").read().replace("outer: {", "outer: {" + outer)
    text = re.sub(r"^seed: .*$", f"seed: {seed}", text, flags=re.M) if seed else text
    open(path, "w", encoding="utf-8").write(text)
    return swarm.submit(path)


# ---- one evil worker of four ------------------------------------------------

def acts(process):
    """How often the players have done what is evil, at least (they tell of 1, 2, 4, ...); they end."""
    process.kill()
    done = int(([0] + re.findall(r"^acted (\d+)$", process.stdout.read(), re.M))[-1])
    assert done, "the evil workers did nothing"
    return done


def evil_one(swarm_of, common, build, manner, n):
    """(seconds of a job of three phases a round on three honest workers and n that misbehave in a given manner, how often they did)."""
    with swarm_of(*BEAT) as swarm, contextlib.ExitStack() as others:
        crowd = n > 1  # that is there before the honest ones, which else have all phases
        evil = others.enter_context(players(swarm, build, n, manner)) if crowd else None
        for name in HONEST:  # a step takes as long in every run, whatever else the cores do
            swarm.worker(name, program=os.path.abspath(f"{build}/release/tests/fault/paced"), env={"SKERRY_STEP_MS": "30"})
        if manner and not crowd:
            evil = others.enter_context(players(swarm, build, n, manner))
        common.wait_until(lambda: len(swarm.get("/v1/workers?limit=1000").json()["items"]) == min(len(HONEST) + n, 1000), 60, "all to join")
        begun = time.monotonic()
        job = submit(swarm, common, replicas=len(HONEST), rounds=8, steps=100)
        swarm.wait_job(job, "done", 150)
        took = time.monotonic() - begun
        return took, acts(evil) if evil else 0


def evil(fig, swarm_of, common, build):
    calm, _ = evil_one(swarm_of, common, build, None, 0)
    for name, manner, n in (("evil_fail", "fail", 1), ("evil_no_retry", "no-retry", 1), ("evil_bad_count", "bad-count", 1),
                            ("evil_hold", "hold", 1), ("evil_identities", "fail", 1000)):
        try:
            took, done = evil_one(swarm_of, common, build, manner, n)
            why = f"; evil at least {done} times"
        except AssertionError as e:
            took, why = None, f"; not done: {str(e)[-200:]}"
        fig.add(name, took and took / calm, "x", "<=1.2", f"{took or 0:.1f} s over {calm:.1f} s, three honest workers{why}")


# ---- poisoners --------------------------------------------------------------

SEEDS = (1, 2, 3)  # what one order of the samples says moves by a percent


def poisoned(swarm_of, common, build, replicas, how, outer, rounds, seed):
    """Held-out loss of a job on one honest worker fewer than replicas; with `how` another worker spoils its contributions."""
    with swarm_of(*BEAT) as swarm:
        for i in range(replicas - 1):
            swarm.worker(f"w{i}")
        if how:
            swarm.worker("poisoner", env={"SKERRY_POISON": how}, program=os.path.abspath(f"{build}/release/tests/fault/poison"))
        common.wait_until(lambda: len(swarm.get("/v1/workers").json()["items"]) == replicas - 1 + bool(how), 60, "all to join")
        job = submit(swarm, common, outer, replicas=replicas, rounds=rounds, steps=30, holdout=0.25, eval_every=rounds, images=1200,
                     seed=seed)
        record = swarm.wait_job(job, "done", 120)
        told = swarm.log("coordinatord")
        assert not how or "poison: a contribution is spoilt" in swarm.log("poisoner"), "the poisoner spoilt nothing"
        return record["eval_loss"], told.count("contribution refused")


POISONED = {"sync": "quorum: 1, ", "async": "async: true, "}


def poison(fig, swarm_of, common, build, size, name):
    def losses(how):
        return [poisoned(swarm_of, common, build, size, how, POISONED[name], 12, seed) for seed in SEEDS]
    calm = sum(loss for loss, _ in losses(None)) / len(SEEDS)
    for how in ("huge", "reversed", "noise"):
        got = losses(how)
        loss = sum(loss for loss, _ in got) / len(SEEDS)
        fig.add(f"poison_{how}_1_of_{size}_{name}", 100 * (loss / calm - 1), "%", "<=1",
                f"held-out {loss:.4f} over {calm:.4f} of the same jobs on the {size - 1} honest alone, {len(SEEDS)} seeds; {[n for _, n in got]} refused")


# ---- strangers --------------------------------------------------------------

STRANGERS, STRANGE_S = 5000, 30


@contextlib.contextmanager
def crowd_at(ports):
    """Connects STRANGERS at these ports; at the end the list that it yields holds the numbers of connections that were made."""
    here, dialled = os.path.dirname(os.path.abspath(__file__)), []
    crowd = [subprocess.Popen([sys.executable, os.path.join(here, "..", "fault", "strangers.py"), str(port), str(STRANGERS // len(ports))],
                              stdout=subprocess.PIPE, text=True) for port in ports]
    try:
        yield dialled
    finally:
        for process in crowd:
            process.kill()
        dialled += [int(process.communicate()[0].split()[-1]) for process in crowd]


def put(swarm, session, size):
    """Seconds of a PUT of a new blob, made as a worker makes it."""
    body = os.urandom(size)
    begun = time.monotonic()
    what = {"sha256": hashlib.sha256(body).hexdigest(), "size": size}
    where = session.post(swarm.url + "/v1/uploads", json=what, timeout=20).json()
    done = session.put(swarm.url + where["url"], data=body, timeout=20)
    assert done.status_code in (200, 201), done.text
    return time.monotonic() - begun


def client(swarm):
    session = swarm.stranger()
    session.headers["Authorization"] = f"Bearer {swarm.token}"
    return session


def p99(values):
    ordered = sorted(values)
    return ordered[int(0.99 * len(ordered))] if ordered else None


def newcomer(swarm):
    """(seconds until a new client has put a blob, the number of times that its connection was cut)."""
    begun, cut = time.monotonic(), 0
    while True:
        try:
            with client(swarm) as session:
                put(swarm, session, 1 << 16)
            return time.monotonic() - begun, cut
        except OSError:
            cut += 1
            assert time.monotonic() < begun + 20, "nobody new was served for 20 s"


def strangers(fig, swarm_of, common):
    with swarm_of(*BEAT) as swarm, client(swarm) as known:
        for name in HONEST:
            swarm.worker(name, "--throttle", "9")
        job = submit(swarm, common, replicas=len(HONEST), rounds=1000, steps=50)
        swarm.wait_round(job, 1)
        put(swarm, known, 1 << 16)
        took, new, before = [], [], swarm.job(job)["round"]
        with crowd_at((swarm.ports["rpc_port"], swarm.ports["http_port"])) as dialled:
            since = time.monotonic()
            while time.monotonic() < since + STRANGE_S:
                took += [put(swarm, known, 1 << 16) for _ in range(10)]
                new.append(newcomer(swarm))
            rounds = swarm.job(job)["round"] - before
        after = newcomer(swarm)[0]
        lost = swarm.log("coordinatord").count("is lost")
    fig.add("strangers_put_p99", p99(took), "s", "<=1", f"{STRANGERS} for {STRANGE_S} s of the 600 that are asked for, {sum(dialled)} dialled; "
            f"{len(took)} PUTs of 64 KiB; {rounds} rounds meanwhile, {lost} workers lost")
    fig.add("strangers_newcomer_p99", p99([s for s, _ in new]), "s", "<=1",
            f"the same with a connection of its own, {len(new)} times, {sum(c for _, c in new)} cut and dialled again")
    fig.add("strangers_after", after, "s", "<=1", "until somebody new has put a blob when they are gone")
