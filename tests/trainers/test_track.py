"""python -m skerry.track: in the end MLflow and Weights & Biases have every point on the coordinator's record, once."""
import glob
import io
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

import pytest
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from common import BIN, HANGS, wait_until  # noqa: E402
from swarm import running  # noqa: E402

PACKAGE = pathlib.Path(os.environ.get("SKERRY_BUILD", "build")).resolve() / "python"


def track(s, job, *args, **env):
    return subprocess.Popen([sys.executable, "-m", "skerry.track", str(job), *map(str, args), "--skerry", f"{BIN}/skerry"],
                            env={**os.environ, "PYTHONPATH": str(PACKAGE), "SKERRY_TOKEN": s.token, **env}, stdout=subprocess.DEVNULL)


def losses(s, job):
    told = [json.loads(line) for line in s.get(f"/v1/jobs/{job}/metrics").text.splitlines()]
    return sorted((r["step"], pytest.approx(r["loss"], rel=1e-6)) for r in told if r["kind"] == "loss" and r["replica"] == 0)


def handed_on(board):
    (state,) = glob.glob(f"{board}/*/.mlflow.json")
    with open(state, encoding="utf-8") as f:
        return json.load(f)["events"]


def records_of(raw):
    """The records of W&B's file: LevelDB's log format (blocks of 32 KiB; checksum, length, type) after a header of seven bytes."""
    whole, at = b"", 7
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", raw, at + 4)
        whole += raw[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, last
            yield whole
            whole = b""


def test_mlflow_over_two_starts(tmp_path):
    from mlflow.tracking import MlflowClient
    uri = f"file:{tmp_path}/mlflow"
    here = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
    board = tmp_path / "board"
    with running(tmp_path / "swarm") as s:
        job = s.submit(rounds=14, steps=60, sample_every=5, eval_every=1)
        first = track(s, job, board, "--mlflow", "islands", **here)  # its start may take longer than the job
        wait_until(lambda: glob.glob(f"{board}/*/.mlflow.json"), 90, "the job's text")
        told = handed_on(board)
        s.worker("one", "--throttle", "12")
        s.wait_round(job, 2, 60)
        assert s.skerry("drain", 1).returncode == 0  # so the job does not end before all of this
        wait_until(lambda: handed_on(board) > told, 120, "the first points")
        first.send_signal(signal.SIGTERM)
        assert first.wait(HANGS) == 130
        assert s.job(job)["state"] == "running"
        s.worker("two")
        assert track(s, job, board, "--mlflow", "islands", **here).wait(HANGS) == 0
        os.environ.update(here)
        client = MlflowClient(uri)
        (run,) = client.search_runs([client.get_experiment_by_name("islands").experiment_id])
        assert run.data.tags["skerry.job"] == f"tiny-{job}" and run.info.status == "FINISHED"
        told = client.get_metric_history(run.info.run_id, "loss/replica-0")
        assert sorted((m.step, m.value) for m in told) == losses(s, job)
        assert len(client.get_metric_history(run.info.run_id, "held_out")) == 14
        drawn = client.list_artifacts(run.info.run_id, "samples")
        assert len(drawn) == len(s.job(job)["samples"]) > 0
        assert track(s, job, board, "--mlflow", "other", **here).wait(HANGS) == 0  # another experiment has all of it, too
        (other,) = client.search_runs([client.get_experiment_by_name("other").experiment_id])
        assert len(client.get_metric_history(other.info.run_id, "loss/replica-0")) == len(told)
        assert [f.path for f in client.list_artifacts(run.info.run_id) if not f.is_dir] == ["job.md"]


def test_another_coordinators_job_is_another_run(tmp_path, monkeypatch):
    """A job of another coordinator, which may have the same name and number, gets a run of its own."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from skerry.track import _Mlflow
    first, again, other = (_Mlflow("islands", "tiny-1", cluster).id for cluster in ("aa", "aa", "bb"))
    assert first == again != other


def test_wandb_without_an_account(tmp_path):
    from wandb.proto import wandb_internal_pb2
    with running(tmp_path / "swarm") as s:
        s.worker("one")
        job = s.submit(rounds=2, steps=20, sample_every=2, eval_every=1)
        assert track(s, job, tmp_path / "board", "--wandb", "islands", WANDB_MODE="offline", WANDB_DIR=str(tmp_path),
                     WANDB_SILENT="true").wait(HANGS) == 0
        (file,) = glob.glob(f"{tmp_path}/wandb/offline-run-*/run-*.wandb")
        rows = []
        for raw in records_of(pathlib.Path(file).read_bytes()):
            record = wandb_internal_pb2.Record.FromString(raw)
            if record.HasField("history"):
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
        told = sorted((r["loss/replica-0/step"], r["loss/replica-0"]) for r in rows if "loss/replica-0" in r)
        assert told == losses(s, job) and told
        assert any("held_out" in r for r in rows)
        (picture,) = glob.glob(f"{tmp_path}/wandb/offline-run-*/files/media/images/**/*.png", recursive=True)
        assert Image.open(io.BytesIO(pathlib.Path(picture).read_bytes())).width > 0


def test_what_is_missing_is_said(tmp_path):
    run = subprocess.run([sys.executable, "-m", "skerry.track", "1", str(tmp_path), "--mlflow", "x", "--skerry", "/none"],
                         env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True)
    assert run.returncode == 1 and "/none: No such file or directory; name the command with --skerry PATH" in run.stderr
    bare = subprocess.run(["/usr/bin/python3", "-m", "skerry.track", "1", str(tmp_path), "--wandb", "x"],
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True)
    assert bare.returncode == 1 and "pip install wandb tensorboard" in bare.stderr


STUBBORN = """
import os, signal, sys, time
from skerry import track

track.END_S, track.POLL_S, folder, watch = 1, 0.1, *sys.argv[1:]

class Swallows:
    def __init__(self, name, cluster):
        self.name = name

    def take(self, values):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            pass

    def close(self):
        print("closed", self.name, flush=True)

try:
    track.track(1, folder, "mlflow", "x", Swallows, watch, track._Interrupt().look)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_ends_it_whoever_swallows_it(tmp_path):
    """The tracker's code swallows Ctrl-C, and `skerry watch` ignores SIGTERM.  Jobs 1 of other coordinators are there, too."""
    for name in ("old-1", "tiny-1", "zoo-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tfevents").touch()
        (tmp_path / name / ".skerry.json").write_text('{"cluster": "ab"}')
    watch = tmp_path / "watch"
    watch.write_text("""#!/bin/sh\n[ $1 = status ] && echo '{"name": "tiny"}' && exit\ntrap '' TERM\nexec sleep 600\n""")
    watch.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", STUBBORN, str(tmp_path), str(watch)], env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                          capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 130 and done.stdout == "closed tiny-1\n", done.stderr


KILLED = """
import sys
from skerry import track
track.track(1, sys.argv[1], "mlflow", "x", None, sys.argv[2], lambda: None)
"""


def test_who_is_killed_leaves_nobody(tmp_path):
    """Else `skerry watch` would keep the folder's lock, and a second start could not go on."""
    watch = tmp_path / "watch"
    watch.write_text(f"""#!/bin/sh\n[ $1 = status ] && echo '{{"name": "tiny"}}' && exit\necho $$ >{tmp_path}/pid.new
mv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 600\n""")
    watch.chmod(0o700)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(watch)], env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    wait_until((tmp_path / "pid").exists, 60, "the watching process")
    child = int((tmp_path / "pid").read_text())
    process.kill()
    process.wait()

    def ended():
        try:
            return pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"  # nobody may wait for it
        except OSError:
            return True

    wait_until(ended, 20, "the watching process to end")
