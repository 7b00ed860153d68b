"""Sends the series of a job to Weights & Biases or MLflow while the job runs: `python3 -m skerry.track JOB DIR --wandb PROJECT`.

Starts `skerry watch JOB --tensorboard DIR`, reads the events that it writes with TensorBoard's own reader (which has to be
installed, as W&B or MLflow has), and hands them on under the same names (docs/deploy.md).  It ends with `skerry watch`.  A file
beside the events keeps the number of those handed on, so that a second start goes on behind the first."""
from __future__ import annotations

import argparse
import ctypes
import glob
import io
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any, Callable, Iterator, Optional, Tuple

PR_SET_PDEATHSIG = 1
POLL_S = 5
END_S = 20  # time for `skerry watch` to end by itself before it is killed
Value = Tuple[str, str, int, float, Any]  # kind, tag, step, when (seconds), what


def _values(event: Any) -> Iterator[Value]:
    from tensorboard.util import tensor_util
    for v in event.summary.value:
        kind, what = v.metadata.plugin_data.plugin_name, tensor_util.make_ndarray(v.tensor)
        if kind == "scalars":
            yield kind, v.tag, event.step, event.wall_time, float(what)
        elif kind == "images":  # width, height, then the files
            for file in what[2:]:
                yield kind, v.tag, event.step, event.wall_time, bytes(file)
        elif kind == "text":
            yield kind, v.tag, event.step, event.wall_time, "\n".join(t.decode() for t in what.reshape(-1))


class _Run:
    """Reads the events of one job, each once."""

    def __init__(self, folder: str, tracker: str, to: str) -> None:
        from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        with open(os.path.join(folder, ".skerry.json"), encoding="utf-8") as f:
            self.cluster = str(json.load(f)["cluster"])
        self.state = os.path.join(folder, f".{tracker}.json")
        self.to = f"{to} {self.cluster}"  # another project or experiment gets all events
        self.seen, self.done = 0, 0
        if os.path.exists(self.state):
            with open(self.state, encoding="utf-8") as f:
                told = json.load(f)
            self.done = int(told["events"]) if told["to"] == self.to else 0
        self.watcher = DirectoryWatcher(folder, EventFileLoader, lambda path: "tfevents" in os.path.basename(path))

    def new(self) -> Iterator[Value]:
        for event in self.watcher.Load():
            self.seen += 1
            if self.seen > self.done:
                yield from _values(event)

    def handed_on(self) -> None:
        self.done = max(self.done, self.seen)
        with open(self.state + ".new", "w", encoding="utf-8") as f:
            json.dump({"to": self.to, "events": self.done}, f)
        os.replace(self.state + ".new", self.state)


class _Wandb:
    def __init__(self, project: str, name: str, cluster: str) -> None:
        import wandb
        self.wandb = wandb
        self.run = wandb.init(project=project, name=name, id=re.sub(r"[^\w-]", "-", f"{name}-{cluster[:12]}"), resume="allow")
        self.known: set = set()

    def take(self, values: Iterator[Value]) -> None:
        from PIL import Image
        for kind, tag, step, _, what in values:
            if tag == "job":
                self.run.config.update({"job": what}, allow_val_change=True)
                continue
            if tag not in self.known:  # Each series has its own steps; those of W&B would have to rise over all series.
                self.known.add(tag)
                self.run.define_metric(tag, step_metric=f"{tag}/step")
            if kind == "images":
                what = self.wandb.Image(Image.open(io.BytesIO(what)))
            elif kind == "text":
                what = self.wandb.Html(what.replace("&", "&amp;").replace("<", "&lt;"))
            self.run.log({tag: what, f"{tag}/step": step})

    def close(self) -> None:
        self.run.finish()


class _Mlflow:
    BATCH = 1000  # the most metrics of a request, by MLflow's API

    def __init__(self, experiment: str, name: str, cluster: str) -> None:
        from mlflow.tracking import MlflowClient
        self.client = MlflowClient()
        found = self.client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else self.client.create_experiment(experiment)
        tags = {"skerry.job": name, "skerry.cluster": cluster}
        known = self.client.search_runs([where], " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items()), max_results=1)
        self.id = known[0].info.run_id if known else self.client.create_run(where, tags=tags, run_name=name).info.run_id

    def take(self, values: Iterator[Value]) -> None:
        from PIL import Image
        from mlflow.entities import Metric
        batch = []
        for kind, tag, step, when, what in values:
            if kind == "scalars":
                batch.append(Metric(tag, what, int(when * 1000), step))
                if len(batch) == self.BATCH:
                    self.client.log_batch(self.id, metrics=batch)
                    batch = []
            elif kind == "images":
                self.client.log_image(self.id, Image.open(io.BytesIO(what)), artifact_file=f"{tag}/{step}.png")
            else:
                self.client.log_text(self.id, what, "job.md" if tag == "job" else f"{tag}/{step}.txt")
        if batch:
            self.client.log_batch(self.id, metrics=batch)

    def close(self) -> None:
        self.client.set_terminated(self.id)


class _Interrupt:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt and remembers it: if a library swallows that, the next look() raises it again."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, *_: Any) -> None:
        self.came = True
        raise KeyboardInterrupt

    def look(self) -> None:
        if self.came:
            raise KeyboardInterrupt


def _with_us() -> None:
    """Ends the child, which has the folder's lock, with this process, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(watching: "subprocess.Popen[bytes]") -> None:
    if watching.poll() is None:
        watching.terminate()
    try:
        watching.wait(END_S)
    except subprocess.TimeoutExpired:
        watching.kill()
        watching.wait()


def track(job: int, folder: str, tracker: str, to: str, start: Callable[[str, str], Any], skerry: str,
          look: Callable[[], None]) -> int:
    """Follows the job until `skerry watch` ends; returns its exit code."""
    try:
        about = subprocess.run([skerry, "status", str(job), "--json"], stdout=subprocess.PIPE, check=False)
        if about.returncode != 0:
            return about.returncode  # the command has printed the reason
        watching = subprocess.Popen([skerry, "watch", str(job), "--tensorboard", folder], preexec_fn=_with_us)
    except OSError as e:
        print(f"skerry.track: {skerry}: {e.strerror}; name the command with --skerry PATH", file=sys.stderr)
        return 1
    name = f"{json.loads(about.stdout)['name']}-{job}"  # the folder may also hold a job of this number of another coordinator
    run: Optional[_Run] = None
    there = None
    try:
        while True:
            look()
            try:
                code: Optional[int] = watching.wait(POLL_S)
            except subprocess.TimeoutExpired:
                code = None
            if run is None and glob.glob(os.path.join(glob.escape(os.path.join(folder, name)), "*tfevents*")):
                run = _Run(os.path.join(folder, name), tracker, to)
                there = start(name, run.cluster)
            if run is not None:
                there.take(run.new())
                run.handed_on()
            if code is not None:
                return code
    finally:
        _end(watching)
        if there is not None:
            there.close()


def main() -> int:
    p = argparse.ArgumentParser(prog="python3 -m skerry.track", description=__doc__.split("\n")[0])
    p.add_argument("job", type=int, help="the job's number")
    p.add_argument("folder", help="where `skerry watch --tensorboard` keeps the events")
    to = p.add_mutually_exclusive_group(required=True)
    to.add_argument("--wandb", metavar="PROJECT", help="a project of Weights & Biases; WANDB_MODE=offline needs no account")
    to.add_argument("--mlflow", metavar="EXPERIMENT", help="an experiment of MLflow, at MLFLOW_TRACKING_URI")
    p.add_argument("--skerry", default="skerry", metavar="PATH", help="the command")
    a = p.parse_args()
    need = "wandb" if a.wandb else "mlflow"
    try:
        import tensorboard  # noqa: F401
        __import__(need)
    except ImportError as e:
        print(f"skerry.track: Python package {e.name} is missing; install it: pip install {need} tensorboard", file=sys.stderr)
        return 1
    look = _Interrupt().look
    try:
        if a.wandb:
            return track(a.job, a.folder, "wandb", a.wandb, lambda *whose: _Wandb(a.wandb, *whose), a.skerry, look)
        to_mlflow = f"{a.mlflow} {os.environ.get('MLFLOW_TRACKING_URI', '')}"
        return track(a.job, a.folder, "mlflow", to_mlflow, lambda *whose: _Mlflow(a.mlflow, *whose), a.skerry, look)
    except KeyboardInterrupt:
        return 130
    except Exception as e:  # from the tracker: a wrong address, no account, a folder that cannot be written
        print(f"skerry.track: {need}: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
