"""Mistakes of users: each gets one clear sentence and a non-zero exit, and loses nothing."""
import os
import socket
import subprocess
import tarfile

import pytest

from common import BIN, HANGS, make_dataset, skerry, write_job
from swarm import running

REFUSED, USAGE, UNREACHABLE = 4, 2, 3


def one_sentence(done, *words):
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize("change, words", [
    (("lr: 1e-3, ", "lerning_rate: 1e-3, "), ["job.yaml:5", "lerning_rate", "train"]),
    (("dim: 32", "dims: 32"), ["job.yaml:4", "dims", "did you mean 'dim'"]),
    (("batch: 8", "batch: eight"), ["job.yaml:5", "batch", "eight"]),
    (("heads: 2", "heads: 3"), ["job.yaml", "heads", "dim"]),
    (("image_size: 16", "image_size: 18"), ["job.yaml", "image_size", "patch"]),
    (("replicas: 2", "replicas: 0"), ["job.yaml:6", "replicas"]),
    (("path: data", "path: nowhere"), ["there is no dataset at", "/nowhere"]),
    (("path: data, ", ""), ["path", "url"]),
    (("rounds: 2, ", ""), ["rounds"]),
    (("up: e3m0", "up: e4m0"), ["job.yaml:8", "e4m0", "e3m0"]),
    (("batch: 8", "batch: 8000"), ["batch", "96"]),
    (("name: diloco", "name: dilocco"), ["dilocco"]),
    (("seed: 5", "seed: [5"), ["job.yaml"]),
])
def test_job_file(tmp_path, change, words):
    job = write_job(tmp_path)
    text = open(job).read()
    assert change[0] in text
    with open(job, "w") as f:
        f.write(text.replace(*change))
    done = skerry("run", job, "--workers", "1", "--out", tmp_path / "out")
    assert done.returncode == REFUSED, (done.returncode, done.stderr)
    assert not (tmp_path / "out" / "model").exists()
    lines = [line for line in done.stderr.splitlines() if line.startswith("skerry: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize("replicas, momentum, warmup, warns", [
    (1, 0.9, 0, "one replica"), (1, 0.5, 0, ""), (1, 0.9, 5, ""), (2, 0.9, 0, "fresh model"), (2, 0.6, 0, ""), (2, 0.9, None, "")])
def test_momentum_that_makes_the_loss_jump_is_warned_of(tmp_path, replicas, momentum, warmup, warns):
    job = write_job(tmp_path, replicas=replicas, momentum=momentum)
    if warmup is not None:
        text = open(job, encoding="utf-8").read().replace("outer: {", f"outer: {{warmup: {warmup}, ")
        open(job, "w", encoding="utf-8").write(text)
    done = skerry("check", job)
    assert done.returncode == 0, done.stderr
    if warns:
        one_sentence(done, "warning: ", warns, "outer.momentum 0.9", "up to 7.0 times")
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("train, words", [
    ("parallel: pipeline", ["train.parallel is pipeline", "one device", "--device"]),
    ("stages: 4, accumulate: 4", ["train.stages is 4", "one device", "--device"]),
    ("stages: 4, parallel: pipeline, accumulate: 2", ["train.accumulate is 2 with 4 stages", "60 % of the devices' time is idle"]),
    ("parallel: data, accumulate: 2", [])])
def test_pipelines_that_cannot_pay_are_warned_of(tmp_path, train, words):
    """On one device there is none; with few micro-batches its stages wait."""
    job = write_job(tmp_path, depth=4)
    text = open(job, encoding="utf-8").read().replace("train: {", f"train: {{{train}, ")
    assert train in text
    open(job, "w", encoding="utf-8").write(text)
    done = skerry("check", job)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if all(word in line for word in words)]
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines()), done.stderr
    assert len(said) == 1 if words else done.stderr == "", done.stderr


def test_empty_class(tmp_path):
    job = write_job(tmp_path)
    os.makedirs(tmp_path / "data" / "nothing")
    done = skerry("check", job)
    assert done.returncode == REFUSED
    one_sentence(done, "nothing", "no images")


def test_missing_job_file(tmp_path):
    done = skerry("submit", tmp_path / "absent.yaml")
    assert done.returncode == REFUSED
    one_sentence(done, "absent.yaml")


def test_truncated_tar(tmp_path):
    make_dataset(tmp_path / "images")
    tar = tmp_path / "data.tar"
    with tarfile.open(tar, "w") as t:
        for name in ("disc", "square"):
            for f in sorted(os.listdir(tmp_path / "images" / name)):
                path = tmp_path / "images" / name / f
                t.add(path, arcname=f)
                (tmp_path / "cls").write_text(str(["disc", "square"].index(name)))
                t.add(tmp_path / "cls", arcname=f.replace(".png", ".cls"))
    job = write_job(tmp_path, data=False)
    text = open(job).read().replace("path: data", "path: data.tar")
    open(job, "w").write(text)
    assert skerry("check", job).returncode == 0
    whole = tar.read_bytes()
    tar.write_bytes(whole[:len(whole) // 2 - 700])
    done = skerry("check", job)
    assert done.returncode == REFUSED
    one_sentence(done, "data.tar")


def test_a_folder_that_may_be_listed_and_not_entered(tmp_path):
    job = write_job(tmp_path)
    (tmp_path / "data" / "disc").chmod(0o644)
    done = subprocess.run(["unshare", "--user", f"{BIN}/skerry", "check", job], capture_output=True, text=True, timeout=HANGS)  # root may anything
    (tmp_path / "data" / "disc").chmod(0o755)
    assert done.returncode == REFUSED
    one_sentence(done, "cannot enter the directory", "disc: Permission denied")


def test_text_file_named_jpg_is_named_and_skipped(tmp_path):
    job = write_job(tmp_path, rounds=1, steps=2)
    (tmp_path / "data" / "disc" / "notes.jpg").write_text("this is no picture\n")
    done = skerry("run", job, "--workers", "1", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "notes" in done.stderr


def test_a_bad_image_is_told_though_its_name_is_not_utf8(tmp_path):
    job = write_job(tmp_path)
    for name in (b"caf\xe9.png", b"red\n\x1b[31m.png"):
        with open(os.fsencode(tmp_path) + b"/data/disc/" + name, "wb") as f:
            f.write(b"no picture")
    with running(tmp_path / "c") as swarm:
        number = swarm.submit(job)
        bad, told = swarm.job(number)["bad_samples"], swarm.skerry("status", number).stdout
    why = "not a JPEG, PNG or WebP image"
    assert sorted(item["key"] for item in bad["items"]) == ["disc/caf?.png", "disc/red ?[31m.png"] and bad["count"] == 2
    assert f"    disc/caf?.png: {why}\n" in told and f"    disc/red ?[31m.png: {why}\n" in told, told


def test_broken_images_above_the_limit_fail_the_job_with_the_reason(tmp_path):
    job = write_job(tmp_path, rounds=50, steps=4)
    open(job, "a").write("")
    text = open(job).read().replace("shard_samples: 32", "shard_samples: 32, max_bad: 3")
    open(job, "w").write(text)
    for i, name in enumerate(sorted(os.listdir(tmp_path / "data" / "disc"))[:20]):
        path = tmp_path / "data" / "disc" / name
        path.write_bytes(path.read_bytes()[:60])  # a PNG's header, and nothing behind it
    done = skerry("run", job, "--workers", "1", "--out", tmp_path / "out")
    assert done.returncode == 5, done.stderr
    assert "max_bad" in done.stderr


def test_zero_workers(tmp_path):
    done = skerry("run", write_job(tmp_path), "--workers", "0", "--out", tmp_path / "out")
    assert done.returncode == USAGE
    assert "workers" in done.stderr


def test_why_a_daemon_ended(tmp_path):
    job = write_job(tmp_path)
    done = skerry("run", job, "--workers", "1", "--device", "gpu", "--out", tmp_path / "out")
    assert done.returncode == 1
    one_sentence(done, 'skerry: worker-1 ended by itself: device "gpu" is unknown: expected auto', "out/logs/worker-1.log)")
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=16k none /mnt && exec "$@"', "sh",
                           f"{BIN}/skerry", "run", job, "--out", "/mnt/out"], capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 1
    one_sentence(done, "coordinatord ended at its start: ", "its disk has 0 B left: make room there, or give another folder with --out")


def test_port_in_use(tmp_path):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", str(tmp_path / "c"), "--listen", "127.0.0.1",
                           "--rpc-port", str(port), "--http-port", "0"], stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode != 0
    assert str(port) in done.stderr and "in use" in done.stderr


@pytest.mark.parametrize("flags, words", [
    (["--rpc-port", "7810", "--http-port", "7810"], "both ports are 7810"),
    (["--config", "/nowhere/coordinator.yaml"], "cannot open /nowhere/coordinator.yaml"),
    (["--log-level", "loud"], "log_level is 'loud', expected debug, info, warn or error"),
    (["--log", "debug"], "did you mean '--log-level'?"),
    (["--lease", "100"], "--lease is '100', expected a duration such as 2s or 1.5h from 500ms to 10m"),
])
def test_settings_that_no_restart_mends(tmp_path, flags, words):
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", str(tmp_path / "c"), "--listen", "127.0.0.1", *flags],
                          stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == USAGE and words in done.stderr, done.stderr


@pytest.mark.parametrize("text, flags, words", [
    ("lease: 100", [], "settings.yaml:1: lease is '100', expected a duration such as 2s or 1.5h from 500ms to 10m"),
    ("lease: 100", ["--lease", "1m"], "lease is '100'"),  # also where a flag wins
    ("store: s3://a/b\nlease_ms: 8s", [], "settings.yaml:2: unknown key 'lease_ms'; did you mean 'lease'? (`coordinatord --help` lists them)"),
    ("rcp_port: 1", [], "settings.yaml:1: unknown key 'rcp_port'; did you mean 'rpc_port'?"),
    ("data_dir: /x", [], "settings.yaml:1: data_dir is not a setting: give --data-dir on the command line"),
    ("host:", [], "settings.yaml:1: host needs one value: name or address"),
    ("rpc_port: [1, 2]", [], "settings.yaml:1: rpc_port needs one value: port for workers"),
    ("lease: 1s", [], "the lease of 1000 ms is shorter than two heartbeats"),
    ("plain_http: true\nstandby: 10s", [], "--standby needs --store-state"),
    ("log_level: loud", [], "log_level is 'loud'"),
])
def test_settings_of_a_file(tmp_path, text, flags, words):
    (tmp_path / "settings.yaml").write_text(text + "\n")
    done = subprocess.run([f"{BIN}/coordinatord", "--data-dir", "c", "--config", "settings.yaml", *flags], cwd=tmp_path,
                          stderr=subprocess.PIPE, text=True, timeout=HANGS, check=False)
    assert done.returncode == USAGE and not (tmp_path / "c").exists(), done.stderr
    one_sentence(done, words)


@pytest.mark.parametrize("command", [
    ["coordinatord", "--data-dir", "", "--listen", "127.0.0.1"], ["skerry", "run", "job.yaml", "--out", ""], ["skerry", "check", ""],
    ["skerry", "login", ""], ["skerry", "status", "--server", ""], ["skerry", "backup", ""], ["skerry", "restore", ""],
    ["skerry", "backup", "b", "--data-dir", ""]])
def test_a_directory_without_a_name(tmp_path, command):
    """Of a variable that is not set: nothing is made in the root directory, or half of it."""
    write_job(tmp_path)
    before = os.listdir("/")
    done = subprocess.run([f"{BIN}/{command[0]}", *command[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.returncode != 0 and "is empty" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert os.listdir("/") == before and sorted(os.listdir(tmp_path)) == ["data", "job.yaml"]


@pytest.mark.parametrize("program", ["coordinatord", "workerd", "skerry"])
def test_help_and_unknown_flags(program):
    done = subprocess.run([f"{BIN}/{program}", "--help"], stdout=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == 0 and "usage" in done.stdout.lower()
    done = subprocess.run([f"{BIN}/{program}", "--wokrers"], stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == USAGE
    one_sentence(done, "'--wokrers'")


@pytest.mark.parametrize("command", ["run", "submit", "check", "keys", "watch", "status", "workers", "tasks",
                                     "sample", "export", "cancel", "drain", "login", "tokens", "revoke", "backup",
                                     "restore", "audit"])
def test_every_subcommand_has_help(command):
    done = skerry(command, "--help")
    assert done.returncode == 0 and f"skerry {command} " in done.stdout and "(null)" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80 and skerry("help", command).stdout == done.stdout


@pytest.mark.parametrize("typed, completed", [
    (["skerry", "wor"], ["workers"]), (["skerry", "status", "--f"], ["--file"]), (["skerry", "workers", "--"], ["--help", "--server", "--json"]),
    (["skerry", "submit", "jo"], [])])
def test_a_shell_completes_commands_and_flags(typed, completed):
    script = subprocess.run([f"{BIN}/skerry", "completion", "bash"], stdout=subprocess.PIPE, text=True, timeout=HANGS, check=True).stdout
    asked = f"COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _skerry; printf '%s\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", script + asked], stdout=subprocess.PIPE, text=True, timeout=HANGS, check=True)
    assert done.stdout.split() == completed
    refused = skerry("completion", "fish")
    assert refused.returncode == USAGE and "expected bash" in refused.stderr


@pytest.mark.parametrize("what, why", [("--version", "No space left on device"), ("keys", "full disk")])
def test_what_is_printed_onto_a_full_disk(what, why):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([f"{BIN}/skerry", what], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == 1
    one_sentence(done, "cannot be written", why)


@pytest.mark.parametrize("token", ["", "hello", "skerry1.", "skerry1.AAAA", "skerry9.AAAA"])
def test_bad_join_token(tmp_path, token):
    done = subprocess.run([f"{BIN}/workerd", "--join", token, "--work-dir", str(tmp_path / "w")],
                          stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode != 0
    assert "token" in done.stderr


@pytest.mark.parametrize("device, status, words", [
    ("nonsense", USAGE, "expected auto, cpu, cpu:N, cpu-ref or cuda:N"),
    ("cpu,", USAGE, "between the commas"),
    ("cuda:x", USAGE, "N a number"),
    ("cuda:all,cuda:0", USAGE, "stands alone"),
    (",".join(["cpu"] * 17), USAGE, "at most 16"),
    ("cuda:999", 4, "not there"),
])
def test_devices_that_cannot_be_had(tmp_path, device, status, words):
    with running(tmp_path / "c") as swarm:
        done = subprocess.run([f"{BIN}/workerd", "--join", swarm.worker_token, "--work-dir", str(tmp_path / "w"),
                               "--device", device], stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == status, done.stderr
    assert words in done.stderr, done.stderr


def test_no_coordinator_known(tmp_path):
    done = skerry("status", env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "SKERRY_TOKEN": ""})
    assert done.returncode == UNREACHABLE
    one_sentence(done, "skerry login")
