"""skerry doctor: it checks this machine and the way to the coordinator, with a verdict on each item."""
import json
import os
import shutil
import socket
import subprocess

from common import BIN, HANGS, skerry
from swarm import swarm  # noqa: F401  (fixture)


def doctor(tmp_path, *args, bin=BIN, within=(), **env):
    """Its findings as {name: [(verdict, found, advice)]}, and its exit status.  It knows a coordinator only by args and env."""
    done = subprocess.run([*within, f"{bin}/skerry", "doctor", "--json", *args], capture_output=True, text=True, check=False, timeout=HANGS,
                          env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), **env})
    found = {}
    for c in json.loads(done.stdout)["checks"]:
        found.setdefault(c["name"], []).append((c["verdict"], c["found"], c["advice"]))
    return found, done.returncode


def listen(at, port):
    """Listens on a port; False: the port is taken."""
    at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        at.bind(("0.0.0.0", port))
    except OSError:
        return False
    at.listen()
    return True


def test_without_a_coordinator(tmp_path):
    with socket.socket() as first, socket.socket() as second:
        others = ["port 7710"] if not listen(first, 7710) else []  # this machine may have a coordinator, or anything
        first.close()
        listen(second, 7711)
        found, status = doctor(tmp_path, SKERRY_CPU_ISA="generic")
    assert status == 0
    assert list(found) == ["programs", "device", "instructions", "disk", "clock", "ports", "coordinator"]
    assert found["programs"][0][0] == "ok" and found["coordinator"][0][0] == "ok"
    assert "images/s" in found["device"][0][1]
    verdict, text, advice = found["instructions"][0]
    assert verdict == "warn" and "no vector extension" in text and advice
    assert len(found["disk"]) == 2 and "fail" not in [f[0] for f in found["disk"]] and str(tmp_path) in found["disk"][0][1]
    assert [(f[0], f[1].split(",")[0]) for f in found["ports"]] == [("warn", p) for p in (*others, "port 7711")], "what is free is not named"


def test_the_way_to_a_coordinator(swarm, tmp_path):
    found, status = doctor(tmp_path, SKERRY_TOKEN=swarm.token)
    assert status == 0, found
    assert {f[0] for name in ("clock", "ports", "coordinator", "link") for f in found[name]} == {"ok"}, found
    assert "role operator" in found["coordinator"][0][1]
    assert "Mbit/s up" in found["link"][0][1]
    found, status = doctor(tmp_path, "--server", os.path.join(swarm.data, "worker.token"))
    assert status == 0 and "can only join" in found["coordinator"][0][1] and "operator's token" in found["link"][0][1]
    lines = skerry("doctor", env={"SKERRY_TOKEN": swarm.token}).stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail", "->") for line in lines)
    swarm.kill("coordinatord")
    found, status = doctor(tmp_path, SKERRY_TOKEN=swarm.token)
    assert status == 1 and [f[0] for f in found["ports"]] == ["fail", "fail"] and "link" not in found and "coordinator" not in found
    assert "WARN" not in swarm.log("coordinatord") and "ERROR" not in swarm.log("coordinatord")


def test_the_clock_of_a_container_is_not_judged(tmp_path):
    found, status = doctor(tmp_path, within=("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"))
    assert status == 0 and found["clock"][0][0] == "ok" and found["clock"][0][1].startswith("not known whether it is synchronised"), found


def test_programs_that_do_not_start(tmp_path):
    bin = tmp_path / "bin"
    bin.mkdir()
    shutil.copy(os.path.join(BIN, "skerry"), bin)
    (bin / "workerd").write_text("#!/bin/sh\necho 'workerd: error while loading shared libraries: libvips.so.42' >&2\nexit 127\n")
    (bin / "workerd").chmod(0o755)
    found, status = doctor(tmp_path, bin=bin)
    assert status == 1
    assert [f[0] for f in found["programs"]] == ["fail", "warn"]
    assert found["programs"][0][1] == "workerd does not start: error while loading shared libraries: libvips.so.42"
    assert found["programs"][1][1] == "coordinatord is not beside this program"


def test_a_folder_that_cannot_be_written_to(tmp_path):
    found, status = doctor(tmp_path, XDG_CACHE_HOME="/proc/none")
    assert status == 1 and found["disk"][0][0] == "fail" and "--work-dir" in found["disk"][0][2]
    found, status = doctor(tmp_path, XDG_CACHE_HOME="", HOME="")  # workerd takes no other folder then
    assert status == 1 and found["disk"][0][0] == "fail" and found["disk"][0][1].startswith("~/.cache/skerry "), found


def test_a_wrong_token_is_a_wrong_command(tmp_path):
    done = skerry("doctor", "--server", tmp_path / "none")
    assert done.returncode == 1 and "reading the token" in done.stderr and not done.stdout
