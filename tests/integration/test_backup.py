"""Backups of a coordinator at work, and their restore on another machine: real daemons, real files."""
import fcntl
import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess

import pytest

from common import BIN, HANGS, skerry, wait_until
from swarm import Swarm, swarm  # noqa: F401  (fixture)


SLOWLY = ("--throttle", "30")  # the job lasts longer than the backups of it


def back_up(swarm, folder, *flags):
    done = skerry("backup", folder, "--data-dir", swarm.data, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restore(folder, data, *flags):
    return skerry("restore", folder, "--data-dir", data, *flags)


def manifests(folder):
    return sorted(glob.glob(f"{folder}/*.manifest"))


def objects(folder):
    return {os.path.basename(p) for p in glob.glob(f"{folder}/objects/*/*")}


def join_by_file(swarm, name, path):
    token, swarm.worker_token = swarm.worker_token, f"@{path}"
    swarm.worker(name, *SLOWLY)
    swarm.worker_token = token


@pytest.fixture
def other(tmp_path):
    """A second machine."""
    s = Swarm(tmp_path / "other")
    try:
        yield s
    finally:
        s.stop()
        for name in s.processes:
            print(f"---- other {name}.log ----\n{s.tail(name)}")


def test_a_coordinator_goes_on_elsewhere_and_its_workers_follow(swarm, other, tmp_path):
    folder, token_file = tmp_path / "backup", tmp_path / "worker.token"
    shutil.copy(os.path.join(swarm.data, "worker.token"), token_file)
    join_by_file(swarm, "a", token_file)
    swarm.worker("b", *SLOWLY)
    job = swarm.submit(rounds=60, steps=6, replicas=2, up="f32", down="f32")
    swarm.wait_round(job, 3)
    before = {w["name"]: w["id"] for w in swarm.get("/v1/workers").json()["items"]}
    # While it trains: versions come and go under the backup's hands.
    for _ in range(4):
        at = swarm.job(job)["round"]
        back_up(swarm, folder, "--keep", "0")
        swarm.wait_round(job, at + 1)
    here = swarm.job(job)["round"]
    swarm.kill("coordinatord")
    shutil.rmtree(swarm.data)  # with the machine
    os.mkdir(other.data)
    if os.geteuid() == 0:
        os.chown(other.data, 61184, 61184)  # as systemd leaves it
    done = restore(folder, other.data)
    assert {os.stat(p).st_uid for p in glob.glob(f"{other.data}/**", recursive=True)} == {os.stat(other.data).st_uid}, "root gives it to who reads it"
    assert done.returncode == 0 and f"start coordinatord with --data-dir {other.data}" in done.stdout, done
    other.coordinator()
    assert other.ports != swarm.ports
    token_file.write_text(other.worker_token)
    names = lambda: {w["name"]: w for w in other.get("/v1/workers").json()["items"]}  # noqa: E731
    wait_until(lambda: names()["a"]["state"] in ("busy", "idle"), 60, "the worker with a token file to follow")
    assert names()["a"]["id"] == before["a"], "its key is known"
    assert other.job(job)["round"] <= here
    swarm.kill("b", signal.SIGKILL)
    other.worker("c")
    done = other.wait_job(job, "done", 180)
    assert done["round"] == 60 and done["modules"][0]["version"] == 60
    out = tmp_path / "model"
    exported = other.skerry("export", job, "--out", out)
    assert exported.returncode == 0, exported.stderr


def test_only_what_is_new_is_copied_and_older_backups_go(swarm, tmp_path):
    folder = tmp_path / "backup"
    swarm.worker("a")
    job = swarm.submit(rounds=2)
    swarm.wait_job(job, "done")
    back_up(swarm, folder)
    first, had = manifests(folder)[0], objects(folder)
    for name in had:
        path = f"{folder}/objects/{name[:2]}/{name}"
        assert hashlib.sha256(open(path, "rb").read()).hexdigest() == name
        assert os.stat(path).st_mode & 0o077 == 0
    wait_until(lambda: back_up(swarm, folder) and len(manifests(folder)) > 1, 20, "another second")
    told = back_up(swarm, folder, "--keep", "1")
    assert re.search(r"[12] older backups? dropped", told), told
    assert len(manifests(folder)) == 1 and not os.path.exists(first)
    named = {line.split()[0] for line in open(manifests(folder)[0], encoding="utf-8") if len(line.split()) == 3 and not line.startswith("end ")}
    assert objects(folder) == named, "what no backup names is gone, what one names is there"
    assert len(objects(folder) - had) <= 2, "only the database can have changed"


def test_restoring_refuses_what_is_damaged_and_what_is_in_use(swarm, tmp_path):
    folder = tmp_path / "backup"
    swarm.worker("a")
    job = swarm.submit(rounds=1)
    swarm.wait_job(job, "done")
    back_up(swarm, folder)
    there = restore(folder, swarm.data)
    assert there.returncode == 1 and "is not empty" in there.stderr
    gone = restore(folder, tmp_path / "x", "--from", "20010101T000000Z")
    assert gone.returncode == 1 and f"there is no backup 20010101T000000Z in {folder}" in gone.stderr
    assert restore(tmp_path / "nowhere", tmp_path / "y").returncode == 1
    victim = max(glob.glob(f"{folder}/objects/*/*"), key=os.path.getsize)
    damage(victim)
    bad = restore(folder, tmp_path / "z")
    assert bad.returncode == 1 and "damaged" in bad.stderr
    assert not [name for name in os.listdir(tmp_path / "z") if name != "lock"], "the next try finds it empty"
    cut = open(manifests(folder)[0], encoding="utf-8").read().splitlines()[:-3]
    open(manifests(folder)[0], "w", encoding="utf-8").write("\n".join(cut) + "\n")
    os.makedirs(tmp_path / "w" / "lost+found")  # of a new disk
    short = restore(folder, tmp_path / "w")
    assert short.returncode == 1 and "cut off" in short.stderr


def test_an_interrupted_restore_is_run_again(swarm, tmp_path):
    """What it leaves is no data directory, and the next restore removes it."""
    folder, data = tmp_path / "backup", tmp_path / "x"
    back_up(swarm, folder)
    hashes = {path: name for name, _, path in (line.split() for line in open(manifests(folder)[0], encoding="utf-8") if len(line.split()) == 3)}
    last = f"{folder}/objects/{hashes['coordinator.db'][:2]}/{hashes['coordinator.db']}"
    os.rename(last, tmp_path / "aside")
    os.mkfifo(last)  # it waits there
    process = subprocess.Popen([f"{BIN}/skerry", "restore", folder, "--data-dir", data], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: os.path.exists(data / "user.secret"), 20, "the restore to write its first files")
    assert restore(folder, data).returncode == 3, "one at a time"
    # The first signal may come before it opens the pipe, where nothing but another one ends its wait.
    wait_until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM), 20, "the restore to end")
    assert process.returncode == -signal.SIGTERM
    part = subprocess.run([f"{BIN}/coordinatord", "--data-dir", data, "--rpc-port", "0", "--http-port", "0"], capture_output=True, text=True, timeout=HANGS, check=False)
    assert part.returncode == 1 and "its restore was interrupted, run it again" in part.stderr, part.stderr
    os.rename(tmp_path / "aside", last)
    done = restore(folder, data)
    assert done.returncode == 0 and "removing what an interrupted restore has left" in done.stderr, done.stderr
    assert os.path.exists(data / "coordinator.db") and not os.path.exists(data / "coordinator.db.restored")


def damage(path):
    raw = bytearray(open(path, "rb").read())
    raw[len(raw) // 2] ^= 1
    open(path, "wb").write(raw)


def test_a_damaged_manifest_is_refused(swarm, tmp_path):
    """Also one that is well formed: a file under another name would be missing, or made anew, such as a secret."""
    folder = tmp_path / "backup"
    back_up(swarm, folder)
    path = manifests(folder)[0]
    text = open(path, encoding="utf-8").read()
    open(path, "w", encoding="utf-8").write(text.replace("user.secret", "user.secres"))
    bad = restore(folder, tmp_path / "x")
    assert bad.returncode == 1 and "the manifest is damaged" in bad.stderr and "restore --from" in bad.stderr, bad
    assert not [name for name in os.listdir(tmp_path / "x") if name != "lock"]


def test_what_rots_in_the_folder_is_made_anew(swarm, tmp_path):
    """Backups share their files: each is read again a week after its last check, and written again if it is damaged."""
    folder = tmp_path / "backup"
    back_up(swarm, folder)
    key = hashlib.sha256(open(os.path.join(swarm.data, "tls-key.pem"), "rb").read()).hexdigest()
    victim = f"{folder}/objects/{key[:2]}/{key}"
    damage(victim)
    os.utime(victim, (0, 0))
    bad = restore(folder, tmp_path / "x")
    assert bad.returncode == 1 and "tls-key.pem: " in bad.stderr and "damaged" in bad.stderr, bad.stderr
    back_up(swarm, folder)
    assert restore(folder, tmp_path / "y").returncode == 0
    os.utime(victim, (0, 0))
    back_up(swarm, folder)
    assert os.stat(victim).st_mtime > 0, "it was looked at"


FULL_DISK = """mount -t tmpfs -o size=8m none "$2" && cd "$2" && mkdir -p one/objects/00
fill() { head -c 16m /dev/zero > "$1" 2>&-; truncate -s -64K "$1"; }
fill one/objects/00/$(printf %064d 0)
"$1"/skerry backup one --data-dir "$3" && ls one/objects/00 && echo whole
fill other
"$1"/skerry backup two --data-dir "$3" || find two -type f
"""


def test_a_full_disk(swarm, tmp_path):
    """Files that no backup names are removed for room; if that does not suffice, nothing of the backup stays, and a sentence gives advice."""
    swarm.submit(rounds=1)
    (tmp_path / "disk").mkdir()
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh", BIN, tmp_path / "disk", swarm.data],
                          capture_output=True, text=True, timeout=HANGS)
    lines = done.stdout.splitlines()
    assert re.match(r"backup \w+: ", lines[0]) and "whole" in lines and "0" * 64 not in lines, done
    assert lines[lines.index("whole") + 1:] == ["two/lock"], done
    assert "No space left on device; to make room, remove the manifest of an old backup" in done.stderr, done


def test_a_backup_that_could_not_count_is_refused(swarm, tmp_path):
    """A backup in the data dir would be lost with it; one beside a manifest of next year is older than that, so --keep would drop it at once."""
    inside = skerry("backup", os.path.join(swarm.data, "backups"), "--data-dir", swarm.data)
    assert inside.returncode == 2 and "would be lost with it" in inside.stderr, inside.stderr
    assert not os.path.exists(os.path.join(swarm.data, "backups"))
    folder = tmp_path / "backup"
    back_up(swarm, folder)
    left = [folder / "20261127T000000Z.manifest.tmp.7-1", next((folder / "objects").iterdir()) / ("0" * 64 + ".tmp.7-2")]
    for path in left:  # by one that was killed
        path.write_bytes(b"half of it")
    back_up(swarm, folder)
    assert not any(path.exists() for path in left)
    future = folder / "29990101T000000Z.manifest"
    last, *others = reversed(manifests(folder))  # one or two: those of a second have one name
    os.rename(last, future)
    for path in others:
        os.remove(path)
    late = skerry("backup", folder, "--data-dir", swarm.data, "--keep", "1")
    assert late.returncode == 1 and "29990101T000000Z" in late.stderr and "clock" in late.stderr, late.stderr
    assert manifests(folder) == [str(future)]


def test_two_backups_at_once(swarm, tmp_path):
    """The second is refused, without the advice to stop the coordinator."""
    with open(os.path.join(swarm.data, "capture.lock"), "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = skerry("backup", tmp_path / "x", "--data-dir", swarm.data)
    assert done.returncode == 3 and "another backup or audit" in done.stderr and "stop it" not in done.stderr, done.stderr


def test_a_damaged_blob_is_found_by_the_backup(swarm, tmp_path):
    swarm.worker("a")
    job = swarm.submit(rounds=1)
    name = swarm.wait_job(job, "done")["modules"][0]["sha256"]
    path = os.path.join(swarm.data, "blobs", name[:2], name)
    raw = bytearray(open(path, "rb").read())
    raw[-1] ^= 1
    os.chmod(path, 0o600)
    open(path, "wb").write(raw)
    done = skerry("backup", tmp_path / "backup", "--data-dir", swarm.data)
    assert done.returncode == 1 and name in done.stderr and "damaged" in done.stderr
    assert not manifests(tmp_path / "backup")


def test_ids_of_the_lost_time_are_not_given_out_again(swarm, other, tmp_path):
    job = swarm.submit(rounds=1)
    back_up(swarm, tmp_path / "backup")
    later = swarm.submit(rounds=1)
    assert restore(tmp_path / "backup", other.data).returncode == 0
    other.coordinator()
    assert [j["id"] for j in other.get("/v1/jobs").json()["items"]] == [job]
    assert other.submit(rounds=1) > later + 1000


@pytest.mark.parametrize("flags, words", [
    (["--backup", "x", "--restore", "y"], "exclude each other"),
    (["--audit", "1", "--backup", "x"], "exclude each other"),
    (["--keep", "3"], "--keep goes only with --backup"),
    (["--from", "x"], "--from goes only with --restore"),
])
def test_orders_that_contradict_each_other_are_refused(tmp_path, flags, words):
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", tmp_path / "d", *flags], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "d").exists()
