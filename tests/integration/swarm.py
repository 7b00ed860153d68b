"""A swarm of real daemons on loopback for one test.

    from swarm import swarm            # the fixture

    def test_it(swarm):
        swarm.worker("a")
        job = swarm.submit(rounds=2)   # keys of common.JOB
        swarm.wait_job(job, "done")
        assert swarm.get("/v1/status").json()["workers"][0]["name"] == "a"

Everything lives in a temporary directory on free ports and is killed at the end; when the test
fails, pytest shows the tails of the logs."""
import collections
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import threading

import pytest
import requests

from common import BIN, HANGS, free_ports, skerry, wait_until, write_job

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
TAIL_LINES = 40


def die_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class AnyName(requests.adapters.HTTPAdapter):
    """Trusts a certificate with any host name, as programs do that know the server's key."""

    def init_poolmanager(self, *args, **kw):
        super().init_poolmanager(*args, assert_hostname=False, **kw)


class Swarm:
    def __init__(self, folder):
        self.folder = str(folder)
        self.data = os.path.join(self.folder, "coordinator")
        self.logs = os.path.join(self.folder, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.processes = {}  # name -> Popen; "coordinatord" is one of them
        self.launched = collections.Counter()  # how often, by name
        self.ports = None
        self.session = None  # with the operator's token

    # ---- daemons ----

    def _launch(self, name, argv, env=None):
        log = open(os.path.join(self.logs, f"{name}.log"), "ab")
        self.processes[name] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_us,
            env={**os.environ, **(env or {})})
        log.close()
        self.launched[name] += 1
        return self.processes[name]

    def coordinator(self, *flags, env=None, bin=BIN, serves=True):
        """Starts coordinatord, or starts it again on the same ports; with `serves` waits until it serves, else see coordinator_serves()."""
        ports_file = os.path.join(self.data, "ports.json")
        if os.path.exists(ports_file):
            os.remove(ports_file)
        rpc, http = (self.ports["rpc_port"], self.ports["http_port"]) if self.ports else free_ports(2)
        process = self._launch("coordinatord", [
            f"{bin}/coordinatord", "--data-dir", self.data, "--listen", "127.0.0.1", "--host", "127.0.0.1",
            "--rpc-port", str(rpc), "--http-port", str(http), *flags], env)
        self.plain = "--plain-http" in flags
        if serves:
            self.coordinator_serves()
        return process

    def coordinator_serves(self, seconds=20):
        """Waits until the coordinator serves, and logs in."""
        process, ports_file = self.processes["coordinatord"], os.path.join(self.data, "ports.json")

        def up():
            assert process.poll() is None, f"coordinatord ended with {process.returncode}:\n{self.tail('coordinatord')}"
            return os.path.exists(ports_file) and os.path.exists(os.path.join(self.data, "user.token"))

        wait_until(up, seconds, "coordinatord to start")
        self.ports = json.load(open(ports_file, encoding="utf-8"))
        self.url = f"http{'' if self.plain else 's'}://127.0.0.1:{self.ports['http_port']}"
        self.token = self.read("user.token")
        self.worker_token = self.read("worker.token")
        self.session = self.stranger()
        self.session.headers["Authorization"] = f"Bearer {self.token}"

    def worker(self, name="worker", *flags, shown=None, device="cpu", threads=1, env=None, bin=BIN, program=None):
        """Starts a worker, or starts it again on the same work directory; `shown` is its name in the swarm."""
        return self._launch(name, [
            program or f"{bin}/workerd", "--join", self.worker_token, "--name", shown or name, "--device", device, "--threads", str(threads),
            "--work-dir", os.path.join(self.folder, f"work-{name}"), *flags], env)

    def joined(self, *names):
        """Waits until these workers have joined, each as often as it was started: a job takes another course if only some have."""
        def all_have():
            log = self.log("coordinatord")
            return all(len(re.findall(rf"worker \d+ \({name}\) has joined", log)) >= self.launched[name] for name in names)
        wait_until(all_have, 30, f"{', '.join(names)} to join")

    def kill(self, name, signo=signal.SIGKILL):
        """Signals a daemon and waits for its end (except for SIGSTOP and SIGCONT)."""
        process = self.processes[name]
        process.send_signal(signo)
        if signo not in (signal.SIGSTOP, signal.SIGCONT):
            process.wait(HANGS)
        return process.returncode

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait(HANGS)

    # ---- files ----

    def read(self, name):
        return open(os.path.join(self.data, name), encoding="utf-8").read().strip()

    def log(self, name):
        return open(os.path.join(self.logs, f"{name}.log"), encoding="utf-8", errors="replace").read()

    def tail(self, name):
        return "\n".join(self.log(name).splitlines()[-TAIL_LINES:])

    # ---- HTTP and jobs ----

    def stranger(self):
        """A client without a secret, which ignores proxies and authorities of the environment."""
        session = requests.Session()
        session.trust_env = False
        session.verify = os.path.join(self.data, "tls-cert.pem")
        session.mount("https://", AnyName())
        return session

    def get(self, path, **kw):
        return self.session.get(self.url + path, timeout=HANGS, **kw)

    def post(self, path, body=None, **kw):
        return self.session.post(self.url + path, json=body, timeout=HANGS, **kw)

    def skerry(self, *args, **kw):
        return skerry(*args, env={"SKERRY_TOKEN": self.token}, **kw)

    def submit(self, job=None, **keys):
        """Writes (unless a path is given) and submits a job; returns its id."""
        if job is None:
            folder = os.path.join(self.folder, "job")
            os.makedirs(folder, exist_ok=True)
            job = write_job(folder, data=not os.path.isdir(os.path.join(folder, "data")), **keys)
        done = self.skerry("submit", job, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["id"]

    def job(self, job_id):
        return self.get(f"/v1/jobs/{job_id}").json()

    def folds(self):
        """The number of outer steps under way or about to begin, here or on workers: at 0, and without workers, the record does not change."""
        outer, tasks = self.get("/v1/status").json()["outer"], self.get("/v1/tasks").json()["items"]
        return outer["busy"] + outer["queue"] + sum(t["kind"] == "outer" and t["state"] == "leased" for t in tasks)

    def wait_lost(self):
        """Waits until the coordinator knows that all (killed) workers are lost, and has made the last outer steps of their contributions."""
        wait_until(lambda: {w["state"] for w in self.get("/v1/workers").json()["items"]} == {"lost"} and not self.folds(), 20, "nobody to be here")

    def wait_job(self, job_id, state, seconds=300):
        def reached():
            job = self.job(job_id)
            over = ("done", "failed", "cancelled")
            assert job["state"] == state or job["state"] not in over, f"{job['state']}: {job['reason']}"
            return job if job["state"] == state else None
        return wait_until(reached, seconds, f"job {job_id} to be {state}")

    def wait_round(self, job_id, n, seconds=120):
        return wait_until(lambda: self.job(job_id)["round"] >= n, seconds, f"round {n} of job {job_id}")

    def events(self):
        """The event stream, read in the background: a list of (event, data) that grows."""
        got = Events(self.session.get(self.url + "/v1/events", stream=True, timeout=HANGS))
        got.start()
        return got


class Events(threading.Thread):
    def __init__(self, response):
        super().__init__(daemon=True)
        self.response = response
        self.items = []
        self.comments = 0

    def run(self):
        event = None
        try:
            for raw in self.response.iter_lines(chunk_size=1):  # bytes: text has more ends of lines
                line = raw.decode()
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    self.items.append((event, json.loads(line[6:])))
                elif line.startswith(":"):
                    self.comments += 1
        except (requests.RequestException, AttributeError):
            pass  # the coordinator went away, or the test ended

    def of(self, kind):
        return [data for event, data in list(self.items) if event == kind]


@contextlib.contextmanager
def running(folder, *flags, **how):
    """A swarm with a coordinator, which ends in any case."""
    s = Swarm(folder)
    try:
        s.coordinator(*flags, **how)
        yield s
    finally:
        s.stop()
        for name in s.processes:  # captured; shown when the test failed
            print(f"---- {name}.log, last {TAIL_LINES} lines ----\n{s.tail(name)}")


@pytest.fixture
def swarm(tmp_path):
    with running(tmp_path) as s:
        yield s
