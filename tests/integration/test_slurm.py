"""deploy/slurm on a real Slurm: a controller, a node and munge of Debian's packages, on this machine."""
import contextlib
import getpass
import os
import re
import socket
import subprocess

import pytest

from common import BIN, HANGS, wait_until
from swarm import swarm  # noqa: F401  (fixture)
from test_faults import epochs_add_up, samples_seen
from test_snapshots import BATCH, SLOWLY, STEPS, submit

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "slurm", "workers.sbatch")
WORKERS = 3
# One node of three processors (as it is told), a partition whose jobs are preempted and one whose jobs preempt.
CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ctl_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={workers}
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    """The daemons of Slurm, which end with the swarm's."""

    def __init__(self, swarm, grace):
        self.folder = os.path.join(swarm.folder, "slurm")
        for name in ("state", "spool"):
            os.makedirs(f"{self.folder}/{name}")
        self.env = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": f"{BIN}:/usr/sbin:{os.environ['PATH']}"}
        ctl, node = free_ports(2)
        with open(self.env["SLURM_CONF"], "w", encoding="utf-8") as f:
            f.write(CONF.format(host=socket.gethostname().split(".")[0], user=getpass.getuser(), ctl_port=ctl, node_port=node,
                                folder=self.folder, workers=WORKERS, grace=grace))
        key = f"{self.folder}/munge.key"
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
            f.write(os.urandom(128))
        files = [f"--{what}={self.folder}/munge.{what}" for what in ("socket", "pid-file", "log-file", "seed-file")]
        swarm._launch("munged", ["munged", "--force", "--foreground", f"--key-file={key}", *files], self.env)
        wait_until(lambda: os.path.exists(f"{self.folder}/munge.socket"), 20, "munged")
        swarm._launch("slurmctld", ["slurmctld", "-D"], self.env)
        swarm._launch("slurmd", ["slurmd", "-D"], self.env)
        wait_until(lambda: "idle" in self("sinfo", "-h", "-o", "%T", check=False), 30, "Slurm's node to be idle")

    def __call__(self, *argv, check=True, **env):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANGS,
                              env={**os.environ, **self.env, **env})
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    def jobs(self, state):
        return sorted(self("squeue", "-h", "-t", state, "-o", "%i").split())

    @contextlib.contextmanager
    def ending(self):
        """Ends all jobs before the daemons end."""
        try:
            yield self
        finally:
            self("scancel", "--user", getpass.getuser(), check=False)
            wait_until(lambda: not self("squeue", "-h", check=False).strip(), 60, "Slurm's jobs to be gone")


def log_of(folder, element):
    return open(f"{folder}/out-{element}", encoding="utf-8").read()


def lost_beyond_snapshots(folder):
    """The number of steps that were made but not saved when workers left, by all logs."""
    left = [re.findall(r"is saved at step (\d+) of (\d+) steps made", log_of(folder, i)) for i in range(1, WORKERS + 1)]
    return [int(made) - int(saved) for log in left for saved, made in log]


@pytest.fixture(params=[60, 0], ids=["told before", "told as it ends"])
def slurm(request, swarm):
    with Slurm(swarm, request.param).ending() as slurm:
        yield slurm


def preempt(swarm, slurm, folder):
    """Three workers, two of which are preempted in mid-round and come back: (the steps lost of each phase that was left, the array, the job at its end)."""
    token, release = f"{folder}/worker.token", f"{folder}/release"
    with open(token, "w", encoding="utf-8") as f:
        f.write(swarm.worker_token)
    started = ("sbatch", "--parsable", f"--array=1-{WORKERS}", f"--output={folder}/out-%a", "--partition=spot", SCRIPT,
               "--device", "cpu", "--threads", "1", *SLOWLY)
    settings = dict(SKERRY_JOIN=token, SKERRY_WORK=f"{folder}/work")
    slurm(started[0], "--test-only", *started[2:], **settings)
    array = slurm(*started, **settings).strip()
    wait_until(lambda: len(swarm.get("/v1/workers").json()["items"]) == WORKERS, 60, "three workers to join")
    job = submit(swarm, 0.3, rounds=1, replicas=WORKERS)

    def training():
        tasks = swarm.get(f"/v1/tasks?job={job}&state=leased").json()["items"]
        return [t for t in tasks if t["kind"] == "train" and t["saved_steps"]]
    wait_until(lambda: len(training()) == WORKERS, 60, "three phases with snapshots")
    urgent = f"until [ -e {release} ]; do sleep 0.1; done"
    slurm("sbatch", "--partition=urgent", "--ntasks=2", "--output=/dev/null", f"--wrap={urgent}")
    again = wait_until(lambda: len(slurm.jobs("PENDING")) == 2 and slurm.jobs("PENDING"), 60, "two to be queued again")
    assert slurm.jobs("RUNNING")[0].startswith(array)
    with open(release, "w", encoding="utf-8"):
        pass
    wait_until(lambda: len([i for i in slurm.jobs("RUNNING") if i.startswith(array)]) == WORKERS, 90, f"{again} to run again")
    ended = swarm.wait_job(job, "done")
    return lost_beyond_snapshots(folder), array, ended


def test_two_of_three_are_preempted_in_mid_round(swarm, slurm, tmp_path):
    lost, array, ended = preempt(swarm, slurm, tmp_path)
    assert len(lost) == 2 and sum(lost) == 0
    workers = swarm.get("/v1/workers").json()["items"]
    assert len(workers) == WORKERS, "they come back as who they were"
    epochs_add_up(ended)
    assert samples_seen(ended) == WORKERS * STEPS * BATCH, "each sample is counted once"
    assert len(os.listdir(tmp_path / "work")) == WORKERS
    swarm.post(f"/v1/workers/{workers[0]['id']}/drain", {})
    wait_until(lambda: len(os.listdir(tmp_path / "work")) == WORKERS - 1, 60, "the work directory of the drained one to be gone")
    slurm("scancel", array)
    wait_until(lambda: not slurm("squeue", "-h").strip(), 60, "cancelled workers to be gone, and not queued again")
    assert all(w["state"] == "left" for w in swarm.get("/v1/workers").json()["items"])
