"""Places on a disk that cannot be used, or no longer: each gets one sentence, and no job is lost."""
import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess

import pytest

from common import BIN, HANGS, make_dataset, skerry, wait_until, write_job
from swarm import swarm, Swarm  # noqa: F401  (fixture)


def sentence(done, status, *words):
    lines = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == status and len(lines) == 1, (done.returncode, done.stdout, done.stderr)
    for word in words:
        assert word.lower() in lines[0].lower(), lines[0]


def run(program, *args, limit=None):
    """Runs a program; limit: the largest file that it can write."""
    low = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit is not None else None
    return subprocess.run([f"{BIN}/{program}", *map(str, args)], capture_output=True, text=True, timeout=HANGS, preexec_fn=low)


def coordinatord(data_dir, **kw):
    return run("coordinatord", "--data-dir", data_dir, "--listen", "127.0.0.1", "--rpc-port", 0, "--http-port", 0, **kw)


def test_data_dirs(tmp_path):
    (tmp_path / "file").write_text("")
    sentence(coordinatord(tmp_path / "file" / "x"), 1, "file is a file, expected a directory")
    sentence(coordinatord("/proc/skerry"), 1, "/proc/skerry")
    sentence(coordinatord(tmp_path), 1, "--data-dir", "it has file, but no file of this program", "an empty directory of its own")
    assert os.listdir(tmp_path) == ["file"], "what is somebody else's is left as it was"
    sentence(coordinatord(tmp_path / "none", limit=0), 1, "--data-dir", "none/lock", "too large")
    sentence(coordinatord(tmp_path / "few", limit=8192), 1, "few/coordinator.db", "too large", "make room")


def test_work_dirs(swarm, tmp_path):
    (tmp_path / "file").write_text("")
    for place, limit, words in ((tmp_path / "file" / "x", None, "file is a file"), ("/proc/skerry", None, "/proc/skerry"),
                                (tmp_path / "none", 0, "none/lock")):
        done = run("workerd", "--join", swarm.worker_token, "--device", "cpu", "--work-dir", place, limit=limit)
        sentence(done, 1, "--work-dir", words)
    swarm.worker("a")
    wait_until(lambda: swarm.get("/v1/workers").json()["items"], 20, "a worker")
    done = run("workerd", "--join", swarm.worker_token, "--device", "cpu", "--work-dir", swarm.folder + "/work-a")
    sentence(done, 1, "work-a is in use by process", "another directory")


def test_a_disk_that_is_full_of_the_cache(swarm, tmp_path):
    """A worker that starts on such a disk makes room by itself."""
    full = ("mount -t tmpfs -o size=2m none $0 && cd $0 && mkdir blobs && echo 00112233445566778899aabbccddeeff >identity &&"
            f" head -c 1m /dev/zero >blobs/{'ab' * 32}; head -c 2m /dev/zero >others; cd / && exec \"$@\"")
    swarm._launch("full", ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", full, tmp_path, f"{BIN}/workerd", "--join", swarm.worker_token,
                           "--device", "cpu", "--threads", "1", "--name", "full", "--work-dir", tmp_path])
    swarm.joined("full")


def test_a_database_that_is_gone_or_cut(swarm):
    job = swarm.submit(rounds=1)
    swarm.kill("coordinatord", 15)
    path = swarm.data + "/coordinator.db"
    whole = open(path, "rb").read()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO migrations VALUES(9999, 0)")
    sentence(coordinatord(swarm.data), 2, "coordinator.db", "newer release")  # to start it again would not help
    for left in (None, b"", whole[:100], whole[:5000], b"no database at all " * 999):
        os.remove(path)
        if left is not None:
            open(path, "wb").write(left)
        sentence(coordinatord(swarm.data), 1, "coordinator.db", "another --data-dir", "back")
        assert (open(path, "rb").read() if os.path.exists(path) else None) == left, "it is left as it was"
        if left is None:
            open(path, "wb").close()
    open(path, "wb").write(whole)
    for name in ("tls-key.pem", "tls-cert.pem", "user.secret"):
        kept = open(f"{swarm.data}/{name}", "rb").read()
        open(f"{swarm.data}/{name}", "wb").write(kept[:20])
        sentence(coordinatord(swarm.data), 1, name, "remove", "old tokens stop working")
        open(f"{swarm.data}/{name}", "wb").write(kept)
    swarm.coordinator()
    assert swarm.job(job)["state"] == "initialising", "nothing is lost"


def test_a_wal_that_is_removed(swarm):
    """Nothing is acknowledged from then on, and after a kill everything acknowledged is there."""
    swarm.worker("a")
    job = swarm.submit(rounds=100000, replicas=1)
    swarm.wait_round(job, 2)
    told = swarm.job(job)["round"]
    os.remove(swarm.data + "/coordinator.db-wal")
    status = wait_until(lambda: not (s := swarm.get("/v1/status").json())["store"]["ok"] and s, 20, "the store to be refused")
    assert "coordinator.db-wal was removed or replaced" in status["store"]["error"]
    swarm.kill("coordinatord")
    swarm.coordinator()
    assert swarm.job(job)["round"] >= told, "what was acknowledged is in the database"
    swarm.wait_round(job, told + 2)


def test_a_wal_that_is_removed_while_no_coordinator_runs(swarm):
    """It has all that was acknowledged since the last checkpoint, here the whole job."""
    swarm.worker("a")
    job = swarm.submit(rounds=100000, replicas=1)
    swarm.wait_round(job, 2)
    told = swarm.job(job)["round"]
    swarm.kill("coordinatord")
    wal = swarm.data + "/coordinator.db-wal"
    os.rename(wal, swarm.folder + "/kept")
    sentence(coordinatord(swarm.data), 1, "coordinator.db is older than it was", "its -wal was removed", "put the newest files back")
    for end in ("-wal", "-shm"):  # the refused start has made them
        if os.path.exists(swarm.data + "/coordinator.db" + end):
            os.remove(swarm.data + "/coordinator.db" + end)
    os.rename(swarm.folder + "/kept", wal)
    swarm.coordinator()
    assert swarm.job(job)["round"] >= told
    swarm.kill("coordinatord")
    os.remove(wal)
    os.remove(swarm.data + "/newest-commit")
    swarm.coordinator()  # as the sentence says: without what is lost


def test_a_data_dir_that_begins_anew(swarm):
    """Neither database nor blobs are left to lose: what was noted of the former database is of no account."""
    swarm.kill("coordinatord")
    for name in os.listdir(swarm.data):
        if name.startswith("coordinator.db"):
            os.remove(os.path.join(swarm.data, name))
    shutil.rmtree(swarm.data + "/blobs")
    with open(swarm.data + "/newest-commit", "w", encoding="utf-8") as f:
        f.write("100\n")
    token = swarm.token
    for _ in range(2):
        swarm.coordinator()
        assert swarm.token == token
        swarm.kill("coordinatord")


def test_a_work_dir_that_goes_away(swarm):
    """Its worker ends with a sentence; another worker gets the task, and no failure is counted."""
    a = swarm.worker("a")
    job = swarm.submit(rounds=100, replicas=1)
    swarm.wait_round(job, 1)
    swarm.kill("a", signal.SIGSTOP)
    assert swarm.job(job)["state"] == "running"
    os.rename(swarm.folder + "/work-a", swarm.folder + "/elsewhere")
    swarm.kill("a", signal.SIGCONT)
    assert a.wait(HANGS) == 1
    assert "the work dir cannot be used any more" in swarm.log("a") and "start workerd again" in swarm.log("a")
    assert swarm.job(job)["state"] == "running"
    swarm.worker("a")
    swarm.wait_job(job, "done")
    assert not [t for t in swarm.get(f"/v1/tasks?job={job}").json()["items"] if t["failures"]]


def test_files_that_do_not_fit(swarm):
    """As on a full disk: another worker takes the task, and no worker is blamed."""
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, whole[1]))  # a model has more
    try:
        swarm.worker("small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    job = swarm.submit(dim=128, depth=6, rounds=2, replicas=1)
    wait_until(lambda: "File too large" in swarm.log("small"), 60, "the small disk to be full")
    assert swarm.processes["small"].poll() is None
    swarm.worker("large")
    swarm.wait_job(job, "done")
    assert "in quarantine" not in swarm.log("coordinatord")


def test_blobs_that_are_gone(swarm):
    """Blobs were removed from the coordinator's data dir: no worker is to blame, and the job waits for its files."""
    swarm.worker("a")
    job = swarm.submit(rounds=100000, replicas=1)
    swarm.wait_round(job, 1)
    swarm.kill("a")
    swarm.wait_lost()
    for folder, _, files in os.walk(swarm.data + "/blobs"):
        for name in files:
            os.remove(os.path.join(folder, name))
    swarm.worker("b")
    reason = wait_until(lambda: swarm.job(job)["stalled"], 90, "the job to be stalled")
    assert swarm.job(job)["state"] == "running"
    assert "is gone from the coordinator's blobs: put its file back from a copy, or submit the job anew" in reason
    assert "quarantine" not in swarm.log("coordinatord")
    got = swarm.skerry("export", job, "--out", swarm.folder + "/m")
    assert got.returncode == 1 and "there is no blob" in got.stderr and len(got.stderr.splitlines()) == 1


@pytest.mark.parametrize("content, status, words", [
    (lambda good: good.encode("utf-16"), 4, ["job.yaml:1", "UTF-16", "save it as UTF-8"]),
    (lambda good: good.encode("utf-16-be"), 4, ["job.yaml:1"]),
    (lambda good: b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode(), 0, []),
    (lambda good: good.encode() + b"# caf\xe9 \n", 4, ["is not UTF-8", "save it as UTF-8"]),
    (lambda good: good.replace("name:", "\tname:").encode(), 4, ["job.yaml:1", "not valid YAML"]),
    (lambda good: b"#" * 40000, 4, ["32768 bytes"]),
    (lambda good: None, 4, ["job.yaml is a folder", "expected a job file"]),
])
def test_job_files(tmp_path, content, status, words):
    path = write_job(tmp_path)
    raw = content(open(path, encoding="utf-8").read())
    os.remove(path)
    if raw is None:
        os.mkdir(path)
    else:
        open(path, "wb").write(raw)
    done = skerry("check", path)
    if status == 0:
        assert done.returncode == 0, done.stderr
    else:
        sentence(done, status, *words)
        if b"caf" in (raw or b""):
            assert f"job.yaml:{raw.count(10)}" in done.stderr, "the line that it is on"


def test_one_name_twice(swarm):
    """Names are only for people: jobs of one name are independent, also after one was cancelled."""
    first = swarm.submit(rounds=1)
    assert swarm.skerry("cancel", first).returncode == 0
    second, third = swarm.submit(rounds=1), swarm.submit(rounds=1)
    states = {j["id"]: (j["name"], j["state"]) for j in swarm.get("/v1/jobs").json()["items"]}
    name = states[first][0]
    assert states == {first: (name, "cancelled"), second: (name, "initialising"), third: (name, "initialising")}


def test_a_job_file_that_is_lost(swarm):
    """The job is set aside: no release refuses it, and numbers that nobody knows are not shown."""
    job = swarm.submit()
    swarm.kill("coordinatord")
    with contextlib.closing(sqlite3.connect(swarm.data + "/coordinator.db")) as db, db:
        db.execute("DELETE FROM specs WHERE job=?", (job,))
    swarm.coordinator()
    assert swarm.job(job)["rounds"] == 0
    shown = swarm.skerry("status", job).stdout.splitlines()
    assert len(shown) == 2 and "its job file is not in the database: put a copy of the database back" in shown[1], shown
    assert "0/" not in swarm.skerry("status").stdout
