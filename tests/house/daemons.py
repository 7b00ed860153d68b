"""Daemons of one build on loopback, for comparing two builds.  No other file of the tree is used, and the standard
library only, so that it runs beside any commit."""
import ctypes
import glob
import http.client
import json
import os
import signal
import ssl
import subprocess
import time

START_S, END_S = 30, 20  # to start, to stop
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
OVER = ("done", "failed", "cancelled")


def die_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(done, seconds, what):
    """The first true value of done()."""
    deadline = time.monotonic() + seconds
    while not (got := done()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.05)
    return got


class Daemons:
    """A coordinator and its workers; `bin` may change between a stop and a start."""

    def __init__(self, bin, folder):
        self.bin, self.folder = os.path.abspath(bin), folder
        self.data = os.path.join(folder, "data")
        self.running = {}
        os.makedirs(folder, exist_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, *why):
        for name in list(self.running):
            self.stop(name, signal.SIGKILL)

    def path(self, name):
        return os.path.join(self.folder, name)

    def text(self, path):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def log(self, name):
        return self.text(self.path(name + ".log"))

    def start(self, name, *argv):
        with open(self.path(name + ".log"), "ab") as log:
            self.running[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_us)
        return self.running[name]

    def stop(self, name, signo=signal.SIGTERM):
        p = self.running.pop(name)
        p.send_signal(signo)
        try:
            p.wait(END_S)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()

    def coordinator(self):
        ports = os.path.join(self.data, "ports.json")
        if os.path.exists(ports):
            os.remove(ports)
        p = self.start("coordinatord", f"{self.bin}/coordinatord", "--data-dir", self.data, "--listen", "127.0.0.1",
                       "--host", "127.0.0.1", "--rpc-port", "0", "--http-port", "0", "--lease", "60s")

        def up():
            if p.poll() is not None:
                raise RuntimeError(f"coordinatord ended with {p.returncode}: {self.log('coordinatord')[-600:]}")
            return os.path.exists(ports)

        wait_for(up, START_S, "coordinatord to start")
        self.port = json.loads(self.text(ports))["http_port"]
        self.token = self.text(os.path.join(self.data, "user.token")).strip()
        self.tls = ssl.create_default_context(cafile=os.path.join(self.data, "tls-cert.pem"))
        self.tls.check_hostname = False

    def worker(self, name="worker", threads=1):
        return self.start(name, f"{self.bin}/workerd", "--join", "@" + os.path.join(self.data, "worker.token"), "--name", name,
                          "--device", "cpu", "--threads", str(threads), "--work-dir", self.path("work-" + name))

    def get(self, path):
        """The body of the answer to a GET."""
        link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=START_S, context=self.tls)
        try:
            link.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = link.getresponse()
            body = answer.read()
        finally:
            link.close()
        if answer.status != 200:
            raise RuntimeError(f"GET {path}: {answer.status} {body[:300]}")
        return body

    def json(self, path):
        return json.loads(self.get(path))

    def skerry(self, *args, timeout=120):
        done = subprocess.run([f"{self.bin}/skerry", *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, "SKERRY_TOKEN": self.token})
        if done.returncode != 0:
            raise RuntimeError(f"skerry {args[0]}: {done.stderr[-600:]}")
        return done.stdout

    def submit(self, job):
        return json.loads(self.skerry("submit", job, "--json").splitlines()[-1])["id"]

    def wait_job(self, job, reached, seconds=180):
        """The job as soon as reached(job) is true, or at its end."""
        def look():
            got = self.json(f"/v1/jobs/{job}")
            if got["state"] in ("failed", "cancelled"):
                raise RuntimeError(f"job {job} {got['state']}: {got['reason']}")
            return got if got["state"] == "done" or reached(got) else None
        return wait_for(look, seconds, f"job {job}")


def build_commit(commit, bench=False):
    """Builds a commit, on demand with the programs of tests/bench, in a worktree of its own, build/house/COMMIT; its build directory."""
    def run(*argv):
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout.strip()
    # A make above us has flags that are not for this one (its jobs, BUILD_DIR, CUDA).
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")}
    tree = os.path.abspath(f"build/house/{run('git', 'rev-parse', '--short=12', commit + '^{commit}')}")
    if not os.path.exists(os.path.join(tree, "Makefile")):
        run("git", "worktree", "prune")
        run("git", "worktree", "add", "--detach", tree, commit)
    print(f"building {commit} in {tree}", flush=True)
    sources = glob.glob("tests/bench/**/bench_*.c", root_dir=tree, recursive=True) if bench else []
    run("make", "-C", tree, f"-j{os.cpu_count()}", "CUDA=0", "all", *(f"build/release/{s[:-2]}" for s in sources))
    return os.path.join(tree, "build")
