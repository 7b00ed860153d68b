"""tests/gpu/run.sh on a machine without a GPU: the calls of a session on a GPU, with toy sizes; no result is lost
whenever it is killed."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from common import HANGS, wait_until

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.path.abspath(os.environ.get("SKERRY_BUILD", "build"))
GROUPS = ["ops", "model", "swarm", "memory", "race", "bench", "train", "why"]
NEED_A_CARD = {"operations: bandwidth and arithmetic", "compute-sanitizer memcheck", "compute-sanitizer racecheck"}
FILES_MAX = 8  # that come back of a call
OUTPUT_MAX = 12000  # characters of it
KILLS = 5


def start(out, *arguments, on=("--dry-run", "cpu"), **environment):
    env = {**os.environ, "OUT": str(out), "BUILD_DIR": BUILD, "PYTHON": sys.executable, "SLOWER": "6", **environment}
    return subprocess.Popen(["tests/gpu/run.sh", "--no-build", *on, *arguments], cwd=ROOT, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def kill_all(process):
    """Kills a process with all processes that it started, in any groups: they are in its session."""
    kill = ["pkill", "-KILL", "--runstates", "R,S,D", "--session", str(process.pid)]
    wait_until(lambda: subprocess.run(kill, check=False).returncode == 1, 60, "all of it to end")


def records(out):
    return {name: (out / name).read_bytes() for name in sorted(os.listdir(out))}


def steps(record):
    """The steps of a record: name -> result, None if the record was cut off in it."""
    found = {}
    for line in record.decode(errors="replace").splitlines():
        if line.startswith("# step "):
            name = line[7:]
            found[name] = None
        ended = re.match(r"# ended \d+ s: (.*)", line)
        if ended:
            found[name] = ended.group(1)
    return found


def check_group(group, found):
    """Every step of the group passed, by its record."""
    (name,) = [n for n in found if re.fullmatch(group + r"-\d{8}T\d{6}\.log", n)]
    ran = steps(found[name])
    assert ran, f"{name} has no step"
    for step, result in ran.items():
        assert result == "ok" or step in NEED_A_CARD and result == "not run: no card", f"{step}: {result}"
    if group in ("train", "swarm", "whole"):
        rows = [json.loads(line) for line in found[name].decode().splitlines() if line.startswith("{")]
        assert rows, f"{name} has no figure"


def test_all_groups_at_once(tmp_path, tmp_path_factory):
    out, wrapped = tmp_path / "out", tmp_path_factory.mktemp("wrapped")
    groups = os.path.join(BUILD, "figures", "short")
    shutil.rmtree(groups, ignore_errors=True)
    python, begun = wrapped / "python", wrapped / "begun"
    python.write_text(f'''#!/bin/sh
case ${{2:-}} in "import torch"*) echo groups: $(ls {groups} 2>/dev/null) >>{begun} ;; esac
exec {sys.executable} "$@"
''')
    python.chmod(0o755)
    process = start(out, "--short", PYTHON=str(python))
    told = process.communicate(timeout=4 * HANGS)[0].decode()
    assert process.returncode == 0, told
    first = begun.read_text().splitlines()[0]
    assert first != "groups:", "PyTorch started before any group"
    assert len(told) <= OUTPUT_MAX and os.listdir(out / "..") == ["out"]
    with tarfile.open(out / "short.tar.gz") as tar:
        tar.extractall(tmp_path / "records")
    for group in GROUPS:
        check_group(group, records(tmp_path / "records" / group))
        assert f"{group}: done" in told


def test_a_device_that_does_not_open(tmp_path):
    process = start(tmp_path, "--short", on=(), CUDA_VISIBLE_DEVICES="")
    told = process.communicate(timeout=4 * HANGS)[0].decode()
    assert process.returncode == 1, told
    assert "run.sh: cuda:0 does not open" in told
    assert re.fullmatch(r"start-\d{8}T\d{6}\.log", "".join(os.listdir(tmp_path)))


def test_a_name_that_no_test_has():
    for name, ok in [("adaln:refuses_impossible", True), ("adaln:refuse_impossible", False), ("adalm", False)]:
        done = subprocess.run([f"{BUILD}/release/gpu/check_ops", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "SKERRY_DEVICE": "cpu"}, check=False)
        assert (done.returncode == 0) == ok, done.stdout.decode()


def test_functions_of_a_test_that_failed():
    """Each runs again by itself, since a card that has failed once takes nothing more of a process."""
    env = {**os.environ, "SKERRY_DEVICE": "cuda:1023", "SKERRY_CUDA_PROBE": "0"}
    done = subprocess.run([f"{BUILD}/release/gpu/check_ops", "adaln"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=env, check=False)
    if done.returncode == 0:
        pytest.skip("built without CUDA, it opens the CPU")
    told = done.stdout.decode().splitlines()
    again = [re.fullmatch(r"check_ops: adaln:(\w+) by itself: fails", line) for line in told]
    assert len([m for m in again if m]) > 1 and all(again[-2:]), "\n".join(told)


def stand_ins(folder, check_ops):
    """A build with this in the place of check_ops, and a Python that has nothing but itself."""
    gpu = folder / "release" / "gpu"
    gpu.mkdir(parents=True)
    for name in ["bin", "release/tests", "release/gpu/train_bench"]:
        (folder / name).symlink_to(os.path.join(BUILD, name))
    for path, text in [(gpu / "check_ops", check_ops), (folder / "python", f"""
case ${{2:-}} in "import "*torch*|"import "*pytest*) echo not here; exit 1 ;; esac
exec {sys.executable} "$@"
""")]:
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
    return {"BUILD_DIR": str(folder), "PYTHONS": str(folder / "python"), "SLOWER": "1"}


def test_a_step_that_hangs(tmp_path):
    """It costs what measures nothing its time, and no figure; nor do figures read what was found beside it."""
    hangs = """
[ "$1" = list ] && echo adaln && exit
mkdir -p "$XDG_CACHE_HOME/skerry" && touch "$XDG_CACHE_HOME/skerry/products"
exec sleep 3600
"""
    cache = tmp_path / "cache"
    process = start(tmp_path / "out", "--short", SECONDS_MAX="120", XDG_CACHE_HOME=str(cache), **stand_ins(tmp_path / "build", hangs))
    told = process.communicate(timeout=4 * HANGS)[0].decode()
    assert process.returncode == 1
    assert told.index("train: done") < told.index("bench: done") < told.index("why: done") < told.index("\nfigures\n"), told
    assert re.search(r"^operations against the reference: adaln +\d+ s  FAILED: over \d+ s$", told, re.M), told
    assert re.search(r"^DiT 384x12, 64 tokens +\d+ s  ok$", told, re.M), told
    assert (tmp_path / "build" / "figures" / "busy" / "skerry" / "products").exists()
    assert not (cache / "skerry" / "products").exists()


def test_a_list_that_fails(tmp_path):
    for name, lists in [("fails", "exit 3"), ("empty", ":")]:
        folder = tmp_path / name
        process = start(folder / "out", "--only", "ops", **stand_ins(folder / "build", lists))
        told = process.communicate(timeout=4 * HANGS)[0].decode()
        assert process.returncode == 1
        assert re.search(r"^operations against the reference: their names +\d+ s  FAILED", told, re.M), told


def test_groups_of_a_call(tmp_path):
    process = start(tmp_path, "--only", "swarm whole")
    told = process.communicate(timeout=4 * HANGS)[0].decode()
    assert process.returncode == 0, told
    found = records(tmp_path)
    assert len(found) <= FILES_MAX and len(told) <= OUTPUT_MAX
    for group in ["start", "swarm", "whole"]:
        check_group(group, found)


def test_nothing_is_lost_when_it_is_killed(tmp_path):
    pick, before, told_ended = random.Random(15), {}, set()
    for _ in range(KILLS):
        limit = sum(map(len, before.values())) + pick.randrange(900, 7000)
        process = start(tmp_path, "--only", "ops train")
        seen = {}

        def long_enough():
            seen.update(records(tmp_path))
            return sum(map(len, seen.values())) >= limit or process.poll() is not None

        wait_until(long_enough, 600, "the records to grow")
        kill_all(process)
        told = process.communicate()[0].decode()
        after = records(tmp_path)
        for name, content in seen.items():  # what was there a moment before
            assert after[name].startswith(content), f"{name} lost what it had"
        for name, content in before.items():
            assert after[name] == content, f"{name} of an earlier run is not as it was"
        told_ended |= set(re.findall(r"^(\S.*?) +\d+ s  ok$", told, re.M))
        before = after
    ended = {name for record in before.values() for name, result in steps(record).items() if result == "ok"}
    assert told_ended and told_ended <= ended
    table = subprocess.run([sys.executable, "tests/gpu/figures.py", "--records", str(tmp_path), "--dry-run",
                            "--out", str(tmp_path / "gpu.json")], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    for name in ended:
        assert re.search(rf"^{re.escape(name)} +(\d+|\?) s  ", table.stdout, re.M), f"{name} is not in the table"
