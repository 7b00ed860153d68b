"""A coordinator with its state in the store: its machine is lost with the disk, and another one goes on."""
import os
import shutil
import signal
import subprocess

import pytest

from common import BIN, HANGS, free_ports, skerry, wait_until
from relay import KEY, Store
from swarm import Swarm
import test_folds_at_workers as folds
from test_faults import epochs_add_up

STALE = 4  # exit status: another coordinator goes on with this state


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    made = Store(str(tmp_path_factory.mktemp("swift") / "store"), conditional=True)
    yield made
    made.stop()


@pytest.fixture
def store(one):
    one.relay.mode = one.relay.of_workers = "ok"
    one.relay.seen.clear()
    yield one
    one.print_log()
    one.relay.mode = one.relay.of_workers = "ok"


@pytest.fixture
def machines(tmp_path):
    """Machines for a coordinator; all have the same workers."""
    made = [Swarm(tmp_path / str(n)) for n in range(3)]
    yield made
    for s in made:
        s.stop()
        for name in s.processes:
            print(f"---- {s.folder} {name}.log ----\n{s.tail(name)}")


def start(machine, store, prefix, *more):
    return machine.coordinator(*store.flags(prefix), "--store-state", *more, env=KEY)


def restore(machine, store, prefix):
    url, rest = store.flags(prefix)[1], store.flags(prefix)[2:]
    return subprocess.run([f"{BIN}/coordinatord", "--restore", url, "--data-dir", machine.data, *rest], env={**os.environ, **KEY},
                          capture_output=True, text=True, timeout=HANGS)


def refused(machine, store, prefix, flag=("--store-state",)):
    return subprocess.run([f"{BIN}/coordinatord", "--data-dir", machine.data, "--listen", "127.0.0.1", "--rpc-port", "0", "--http-port", "0",
                           *store.flags(prefix), *flag], env={**os.environ, **KEY}, capture_output=True, text=True, timeout=HANGS)


def go_on(machine, old, store, prefix):
    """Starts the coordinator on another machine, at the address of the old one."""
    done = restore(machine, store, prefix)
    assert done.returncode == 0, done.stderr
    machine.ports = old.ports
    start(machine, store, prefix)


def test_a_lost_machine(machines, store):
    """Nothing acknowledged is lost with the disk; workers, tokens and the outer state go on; the same a second time.  An audit finds
    everything, although nothing of it was on that machine before."""
    first, second, third = machines
    start(first, store, "lost")
    for name in "ab":
        first.worker(name)
    first.joined("a", "b")
    job = folds.submit(first, "coordinator", rounds=12, steps=8, eval_every=3)
    known = {w["name"]: w["id"] for w in first.get("/v1/workers").json()["items"]}
    settings = os.path.join(first.folder, "settings.yaml")
    with open(settings, "w", encoding="utf-8") as f:
        f.write(f"store_endpoint: {store.relay.url}\nstore_plain: true\n")
    for old, new, round_ in ((first, second, 3), (second, third, 7)):
        old.wait_round(job, round_)
        before = old.job(job)
        old.kill("coordinatord")
        shutil.rmtree(old.data)
        assert restore(new, store, "lost").returncode == 0
        audit = skerry("audit", job, "--data-dir", new.data, "--config", settings, env=KEY)
        assert audit.returncode == 0 and " 0 outer steps folded again" not in audit.stdout, audit.stdout + audit.stderr
        new.ports = old.ports
        start(new, store, "lost")
        after = new.job(job)
        assert after["round"] >= before["round"] and after["modules"][0]["version"] >= before["modules"][0]["version"]
        assert new.token == old.token and new.worker_token == old.worker_token
    done = third.wait_job(job, "done")
    epochs_add_up(done)
    assert done["modules"][0]["version"] == 12
    workers = third.get("/v1/workers").json()["items"]
    assert {w["name"]: w["id"] for w in workers} == known, "they are known"
    assert all(w["tasks_failed"] == 0 for w in workers), workers


def test_a_state_that_was_kept_here_alone(machines, store):
    """The flag comes later: the outer state goes to the store before anything is served, so the disk may be lost at once."""
    first, second, _ = machines
    first.coordinator(*store.flags("later"), env=KEY)
    for name in "ab":
        first.worker(name)
    first.joined("a", "b")
    job = folds.submit(first, "coordinator", rounds=6, steps=8)
    first.wait_round(job, 2)
    for name in ("a", "b", "coordinatord"):
        first.kill(name)
    start(first, store, "later")
    assert "files of the outer optimiser's state went to the store" in first.log("coordinatord")
    before = first.job(job)["round"]
    first.kill("coordinatord")
    shutil.rmtree(first.data)
    go_on(second, first, store, "later")
    for name in "ab":
        second.worker(name)
    done = second.wait_job(job, "done")
    assert before >= 2 and done["modules"][0]["version"] == 6


def test_the_old_one_is_deposed(machines, store):
    """The old coordinator runs on, with workers and jobs: it ends at its next commit, acknowledges nothing, and does not start again."""
    first, second, _ = machines
    start(first, store, "deposed")
    first.worker("a")
    job = first.submit(rounds=100000, steps=8)
    first.wait_round(job, 2)
    done = restore(second, store, "deposed")
    assert done.returncode == 0, done.stderr
    assert "this is the coordinator now" in done.stdout
    assert first.processes["coordinatord"].wait(HANGS) == STALE
    assert "another coordinator" in first.log("coordinatord") and "goes on with this state" in first.log("coordinatord")
    second.ports = first.ports
    start(second, store, "deposed")
    again = refused(first, store, "deposed")
    assert again.returncode == STALE and "another coordinator has gone on with this state" in again.stderr, again.stderr
    second.wait_round(job, second.job(job)["round"] + 2)
    third = machines[2]
    second.kill("coordinatord", signal.SIGSTOP)
    shutil.copytree(second.data, third.data, ignore=shutil.ignore_patterns("lock"))  # an image of its disk
    second.kill("coordinatord", signal.SIGCONT)
    second.wait_round(job, second.job(job)["round"] + 2)
    image = refused(third, store, "deposed")
    assert image.returncode == STALE and "old copy" in image.stderr, image.stderr
    assert second.processes["coordinatord"].poll() is None


def test_an_idle_one_finds_out(machines, store):
    """A coordinator that commits nothing checks by itself whether the state is still its own."""
    first, second, _ = machines
    start(first, store, "idle")
    assert restore(second, store, "idle").returncode == 0
    assert first.processes["coordinatord"].wait(HANGS) == STALE


def test_one_without_the_flag_finds_out(machines, store):
    """A coordinator that no longer ships its state ends when another goes on with it, which has the same blobs, and does not start again."""
    first, second, _ = machines
    start(first, store, "dropped")
    first.kill("coordinatord", signal.SIGTERM)
    first.coordinator(*store.flags("dropped"), env=KEY)
    assert restore(second, store, "dropped").returncode == 0
    assert first.processes["coordinatord"].wait(HANGS) == STALE
    again = refused(first, store, "dropped", flag=())
    assert again.returncode == STALE and "another coordinator has gone on with this state" in again.stderr, again.stderr


def test_the_flag_is_dropped_and_set_again(machines, store):
    """A job goes on without the flag, also on a disk that a restore has just filled, where nothing of the outer optimiser's state is yet; and with the
    flag again the disk may be lost."""
    first, second, third = machines
    start(first, store, "back")
    for name in "ab":
        first.worker(name)
    first.joined("a", "b")
    job = folds.submit(first, "coordinator", rounds=9, steps=8)
    first.wait_round(job, 2)
    first.kill("coordinatord")
    shutil.rmtree(first.data)
    assert restore(second, store, "back").returncode == 0
    second.ports = first.ports
    for round_, flag in ((4, ()), (6, ("--store-state",))):
        second.coordinator(*store.flags("back"), *flag, env=KEY)
        second.wait_round(job, round_)
        second.kill("coordinatord")
    shutil.rmtree(second.data)
    go_on(third, second, store, "back")
    assert third.wait_job(job, "done")["modules"][0]["version"] == 9


def test_a_store_that_is_out_of_reach(machines, store):
    """Nothing is acknowledged meanwhile, and nothing fails; after a clean stop and a start on the same disk it goes on."""
    first, second, _ = machines
    start(first, store, "out")
    first.worker("a")
    job = first.submit(rounds=8, steps=8)
    first.wait_round(job, 2)
    first.get("/v1/status")  # what is shown while a commit waits
    store.relay.mode = "busy"
    asked = subprocess.Popen([f"{BIN}/skerry", "tokens", "--new", "viewer", "--server", first.token], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    with pytest.raises(Exception):
        first.session.post(first.url + "/v1/tokens", json={"role": "viewer", "name": "late"}, timeout=3)
    assert asked.stderr.readline().startswith("waiting for the coordinator, which answers once its disk or object store has")
    wait_until(lambda: [w["why"] for w in first.get("/v1/status").json()["waiting_for"] if w["what"] == "the store that has the state"
                        and "is busy or broken" in w["why"]], 20, "the status blames the store, not the disk")
    wait_until(lambda: "nothing is acknowledged until the store takes it" in first.log("coordinatord"), 20, "a sentence")
    store.relay.mode = "ok"
    made, _ = asked.communicate(timeout=HANGS)
    assert asked.returncode == 0 and made.startswith("skerry1."), "it comes when it is durable"
    first.wait_round(job, 4)
    first.kill("coordinatord", signal.SIGTERM)
    start(first, store, "out")
    first.wait_job(job, "done")
    epochs_add_up(first.job(job))
    assert all(w["tasks_failed"] == 0 for w in first.get("/v1/workers").json()["items"])
    first.kill("coordinatord")
    go_on(second, first, store, "out")
    assert any(t["name"] == "late" for t in second.get("/v1/tokens").json()["items"]), "it was told nothing, and it was done"


def test_what_is_refused(machines, store, tmp_path):
    """No conditional writes, no state, a folder that is not empty, a state that is already there: each gets a sentence."""
    first, second, third = machines
    none = restore(first, store, "nowhere")
    assert none.returncode == 1 and "there is no coordinator's state below" in none.stderr, none.stderr
    start(second, store, "there")
    taken = restore(second, store, "there")
    assert taken.returncode == 1 and "is not empty" in taken.stderr
    native, store.relay.native = store.relay.native, None  # Swift's S3 as it is
    try:
        plain = refused(third, store, "plain")
        assert plain.returncode == 1 and "this store has no conditional writes" in plain.stderr, plain.stderr
        third.coordinator(*store.flags("plain"), env=KEY)
        third.kill("coordinatord")
    finally:
        store.relay.native = native
    shutil.rmtree(third.data)
    os.makedirs(third.data)
    for name in ("tls-key.pem", "tls-cert.pem", "cluster.secret", "worker.secret", "user.secret", "ticket.secret"):
        shutil.copy(os.path.join(second.data, name), third.data)
    stranger = refused(third, store, "there")
    assert stranger.returncode == STALE and "has the state of a coordinator already" in stranger.stderr, stranger.stderr
    assert store.session.delete(store.native + "/v1/AUTH_test/blobs/there/state/keys", timeout=HANGS).status_code == 204
    shutil.rmtree(third.data)
    lacking = restore(third, store, "there")
    assert lacking.returncode == 1 and "there is no coordinator's state below" in lacking.stderr, lacking.stderr
    second.session.post(second.url + "/v1/tokens", json={"role": "viewer", "name": "still"}, timeout=HANGS).raise_for_status()  # it goes on
    nothing = subprocess.run([f"{BIN}/coordinatord", "--data-dir", tmp_path / "x", "--store-state"], capture_output=True, text=True, timeout=HANGS)
    assert nothing.returncode == 2 and "--store-state needs --store" in nothing.stderr, nothing.stderr


def test_a_restore_that_cannot_be_deposes_nobody(machines, store):
    """Damaged keys in the store are found before the owner is deposed, and the next try finds an empty directory."""
    first, second, _ = machines
    start(first, store, "damaged")
    url = f"{store.native}/v1/AUTH_test/blobs/damaged/state/keys"
    keys = store.session.get(url, timeout=HANGS).content
    assert store.session.put(url, data=b"tls-key.pem 00\n", timeout=HANGS).status_code == 201
    done = restore(second, store, "damaged")
    assert done.returncode != 0 and "the keys in the store lack" in done.stderr, done.stderr
    assert first.post("/v1/tokens", {"role": "viewer", "name": "v"}).status_code == 201, "it is the owner, and commits"
    assert store.session.put(url, data=keys, timeout=HANGS).status_code == 201
    done = restore(second, store, "damaged")
    assert done.returncode == 0, done.stderr


def test_workers_follow_a_list(machines, store):
    """The new machine has another address: a worker with a list of addresses finds it, and gets and puts blobs there."""
    first, second, _ = machines
    start(first, store, "list")
    second.ports = {k: v for k, v in zip(("rpc_port", "http_port"), free_ports(2))}
    first.worker("a", "--also", f"127.0.0.1:{second.ports['rpc_port']}:{second.ports['http_port']}")
    job = first.submit(rounds=6, steps=8)
    first.wait_round(job, 2)
    first.kill("coordinatord")
    shutil.rmtree(first.data)
    assert restore(second, store, "list").returncode == 0
    start(second, store, "list", "--store-workers", "no")
    second.wait_job(job, "done")
    assert all(w["tasks_failed"] == 0 for w in second.get("/v1/workers").json()["items"])


def test_a_standby(machines, store):
    """A standby goes on by itself when the owner is lost; the owner becomes the standby when it comes back with its disk."""
    first, second, third = machines
    first.ports, second.ports, third.ports = (dict(zip(("rpc_port", "http_port"), free_ports(2))) for _ in range(3))
    flags = (*store.flags("pair"), "--store-state", "--standby", "20s")
    second.coordinator(*flags, env=KEY, serves=False)
    wait_until(lambda: "nobody has kept a state there yet" in second.log("coordinatord"), 20, "a sentence")
    start(first, store, "pair")
    wait_until(lambda: "watches the coordinator on" in second.log("coordinatord"), 20, "a sentence")
    first.worker("a", "--also", f"127.0.0.1:{second.ports['rpc_port']}:{second.ports['http_port']}")
    job = first.submit(rounds=60, steps=8)
    first.wait_round(job, 2)
    first.kill("a", signal.SIGSTOP)
    assert first.job(job)["state"] == "running"
    first.kill("coordinatord")
    first.kill("a", signal.SIGCONT)
    second.coordinator_serves(120)
    second.wait_round(job, second.job(job)["round"] + 1)
    first.coordinator(*flags, env=KEY, serves=False)  # deposed, on its disk
    wait_until(lambda: first.log("coordinatord").count("watches the coordinator on") == 1, 20, "a sentence")
    assert "another coordinator has gone on with this state" in first.log("coordinatord")
    assert {"lock", "deposed"} == set(os.listdir(first.data)) and "coordinator.db" in os.listdir(os.path.join(first.data, "deposed"))
    assert second.processes["coordinatord"].poll() is None
    second.kill("coordinatord", signal.SIGSTOP)  # it hangs
    first.coordinator_serves(120)
    second.kill("coordinatord", signal.SIGCONT)
    wait_until(lambda: "watches the coordinator on" in second.log("coordinatord").rpartition("another coordinator")[2], 60, "it stands by")
    done = first.wait_job(job, "done")
    epochs_add_up(done)
    assert done["modules"][0]["version"] == 60
    assert first.log("a").count("dialling again") <= 8, "not at each dial"
    assert all(w["tasks_failed"] == 0 for w in first.get("/v1/workers").json()["items"])
    kept = os.path.join(third.data, "blobs")
    os.makedirs(kept)
    third.coordinator(*flags, env=KEY, serves=False)
    assert third.processes["coordinatord"].wait(HANGS) == 1 and "has blobs of its own" in third.log("coordinatord")
    assert os.path.isdir(kept)


def test_a_standby_that_could_not_go_on(machines, store):
    """What it needs to take over is tried before it waits: a key that only reads, or may not delete, or a store without conditional writes, is refused
    at once; a store that does not answer yet is waited for, and then tried."""
    owner, second, third = machines
    start(owner, store, "able")
    flags = (*store.flags("able"), "--store-state", "--standby", "10s")

    def ends(machine):
        machine.coordinator(*flags, env=KEY, serves=False)
        status = machine.processes["coordinatord"].wait(HANGS)
        return status, machine.tail("coordinatord").splitlines()[-1]
    relay, native = store.relay, store.relay.native
    try:
        for denied in (("PUT", "POST", "DELETE"), ("DELETE",)):
            relay.denied = denied
            status, said = ends(second)
            assert status == 1 and said.startswith("coordinatord: ") and "may not" in said, (denied, status, said)
        relay.denied, relay.native = (), None
        status, said = ends(second)
        assert status == 1 and "this store has no conditional writes" in said, (status, said)
        relay.mode, relay.denied = "busy", ("PUT",)
        third.coordinator(*flags, env=KEY, serves=False)
        wait_until(lambda: "the store cannot be asked" in third.log("coordinatord"), 20, "a sentence")
        relay.mode = "ok"
        assert third.processes["coordinatord"].wait(HANGS) == 1, third.tail("coordinatord")
    finally:
        relay.mode, relay.denied, relay.native = "ok", (), native


def test_one_that_opens_is_alive(machines, store):
    """Opening a snapshot or the list of all blobs may take minutes: a standby must not take that for silence."""
    first = machines[0]

    def signs():
        got = store.session.get(store.native + "/v1/AUTH_test/blobs/early/state/alive", timeout=HANGS)
        return int(got.text.split()[0]) if got.status_code == 200 else 0

    try:
        for slow in ("early/state/snapshot", "early%2Fblobs"):
            store.relay.refuse, store.relay.refuse_mode = slow, "silent"
            first.coordinator(*store.flags("early"), "--store-state", env=KEY, serves=False)
            wait_until(lambda: signs() >= 2, 60, "a second sign of life")
            assert not os.path.exists(os.path.join(first.data, "ports.json")), "it still opens"
            first.kill("coordinatord")
            store.session.delete(store.native + "/v1/AUTH_test/blobs/early/state/alive", timeout=HANGS)
    finally:
        store.relay.refuse, store.relay.refuse_mode = None, "busy"


@pytest.mark.parametrize("flags, why", [(["--standby", "10s"], "--standby needs --store-state"),
                                        (["--store-state", "--store", "s3://b/p", "--standby", "2s"], "--standby is '2s', expected a duration such as"),
                                        (["--store-state", "--store", "s3://b/p", "--standby", "5000", "ms"], "2s or 1.5h from 10s to 1d")])
def test_what_a_standby_is_refused(tmp_path, flags, why):
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", tmp_path / "x", *flags], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 2 and why in done.stderr, done.stderr
