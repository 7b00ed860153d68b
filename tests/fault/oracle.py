"""The requirements that a swarm must meet under any faults.

    shown       rounds, versions and samples never go back once they were shown, and a version that was shown keeps its bits
    results     a result that was acknowledged to its worker is on record as done, once
    daemons     end only when they are told to
    ledger      each sample is used once: `skerry audit` finds the balance, and every version as recorded
    memory      the coordinator and each worker need as much at the end as in the first half
    learning    the held-out loss is that of a calm run after the same number of samples"""
import os
import re
import time

import requests

LOOK_S = 0.1
GREW = 1.1  # times the largest size of the first half,
GREW_BYTES = 4 << 20  # and so much more
LOSS_OFF, LOSS_OFF_SHORT, SHORT = 0.01, 0.1, 100  # of a run of at least so many rounds; of shorter ones, whose loss still falls fast
PAGE = os.sysconf("SC_PAGESIZE")
BALANCE = re.compile(r"(\d+) done, (\d+) leased, (\d+) pending; folded in \d+ rounds: (\d+), reported and not folded yet: (\d+)")


def acknowledged(log):
    """Tasks whose results were acknowledged to their workers."""
    refused, taken = set(), []
    for line in log.splitlines():
        if found := re.search(r"task=(\d+) (?:failed:|was refused|was not taken|was taken back)", line):
            refused.add(found.group(1))
        elif found := re.search(r"times of task=(\d+):.* told .* saved", line):
            if found.group(1) not in refused:
                taken.append(int(found.group(1)))
            refused.discard(found.group(1))
    return taken


def undone(task):
    """True if an acknowledged result is not on record.  One that was refused when it was folded is done again and counts as a failure."""
    return task["state"] != "done" and "refused" not in task["reason"]


def judged(record):
    """[(samples in the version, its held-out loss)] of the rounds that are shown, which are the newest."""
    rows, n = [], 0
    for r in record["history"]:
        n += r["samples"]
        rows.append((n, r["eval_loss"]))
    return rows


def samples_judged(record):
    """The number of samples in the newest version that has a held-out loss."""
    return [n for n, loss in judged(record) if loss is not None][-1]


def mean_loss(record, samples):
    """Mean held-out loss of the versions that have between half of so many samples and all: a single one may be some percent off.
    None: not all of them have a loss yet."""
    rows = judged(record)
    losses = [loss for n, loss in rows if samples / 2 < n <= samples]
    return sum(losses) / len(losses) if rows and rows[-1][0] >= samples and None not in losses else None


class Oracle:
    """Watches the swarm while the faults happen."""

    def __init__(self, swarm, workers):
        self.swarm, self.workers = swarm, workers
        self.gone, self.resting = set(), False  # by our own hand
        self.round = self.looks = self.unanswered = 0
        self.samples, self.versions, self.sizes, self.told = {}, {}, [], []
        self.looked_at = 0.0

    def follow(self, job):
        self.job = job

    def away(self, worker, is_away):
        (self.gone.add if is_away else self.gone.discard)(worker)

    def rest(self, is_resting):
        """Says whether the coordinator need not answer for now."""
        self.resting = is_resting

    def look(self):
        time.sleep(max(0, self.looked_at + LOOK_S - time.monotonic()))
        self.looked_at = time.monotonic()
        self._look_at_daemons()
        if self.resting:
            return
        self.looks += 1
        try:
            record = self.swarm.session.get(f"{self.swarm.url}/v1/jobs/{self.job}", timeout=1).json()
        except (requests.RequestException, ValueError):
            self.unanswered += 1
            return
        if "round" in record:
            self._look_at_job(record)

    def _look_at_daemons(self):
        for name, process in self.swarm.processes.items():
            if process.poll() is None:
                pages = open(f"/proc/{process.pid}/statm", encoding="utf-8").read().split()[1]
                self.sizes.append((self.looked_at, name, int(pages) * PAGE))
            else:
                ours = self.resting if name == "coordinatord" else name in self.gone
                assert ours, f"{name} ended by itself with {process.returncode}:\n{self.swarm.tail(name)}"

    def _look_at_job(self, record):
        assert record["round"] >= self.round, f"round {self.round} was shown, and then {record['round']}"
        self.round = record["round"]
        for e in record["epochs"]:
            key = (e["partition"], e["epoch"])
            assert e["done"] >= self.samples.get(key, 0), f"{self.samples[key]} samples of epoch {key} were shown as done, and then {e['done']}"
            self.samples[key] = e["done"]
        for m in record["modules"]:
            key = (m["id"], m["version"])
            assert self.versions.setdefault(key, m["sha256"]) == m["sha256"], f"version {key} has other bits than were shown"

    # ---- at the end ----

    def judge(self):
        """Checks the requirements that hold while workers train."""
        self._judge_results(self.swarm.job(self.job))
        self._judge_memory()

    def judge_ledger(self, record):
        """Checks the ledger; no worker may be training."""
        settled, leased, folded, left = self._balance(record)
        assert (settled, leased, folded) == (folded + left, 0, judged(record)[-1][0]), self.told

    def judge_end(self, record, samples):
        """Checks the ledger of a finished job that had to use so many samples."""
        assert record["state"] == "done" and record["round"] == record["rounds"], record["reason"]
        assert self._balance(record) == (samples, 0, samples, 0), f"{samples} samples were to be used: {self.told}"

    def _balance(self, record):
        """Numbers of samples that are settled, leased, folded, and reported but not folded; first the audit must find no fault."""
        for e in record["epochs"]:
            assert e["done"] + e["leased"] + e["pending"] == e["total"], e
        done = self.swarm.skerry("audit", record["id"], "--data-dir", self.swarm.data)
        assert done.returncode == 0, done.stdout + done.stderr
        self.told += done.stdout.strip().splitlines()
        settled, leased, _, folded, left = map(int, BALANCE.search(done.stdout).groups())
        return settled, leased, folded, left

    def judge_loss(self, record, calm):
        """Compares the losses after the same number of samples in both runs."""
        n = samples_judged(record)
        loss, of_calm = mean_loss(record, n), mean_loss(calm, n)
        off = loss / of_calm - 1
        self.told.append(f"held-out loss of the newer half of {n} samples {loss:.4f}, calm {of_calm:.4f}: {100 * off:+.2f} %")
        assert off <= (LOSS_OFF_SHORT if record["round"] < SHORT else LOSS_OFF), self.told[-1]

    def _judge_results(self, record):
        taken = [t for w in self.workers for t in acknowledged(self.swarm.log(w))]
        on_record, page = {}, {"next": 0}
        while page["next"] is not None:
            page = self.swarm.get(f"/v1/tasks?job={self.job}&limit=1000" + (f"&before={page['next']}" if page["next"] else "")).json()
            on_record |= {t["id"]: t for t in page["items"]}
        lost = [t for t in taken if t in on_record and undone(on_record[t])]
        assert not lost, f"results of tasks {lost} were acknowledged and are lost"
        assert len(taken) == len(set(taken)), f"results were taken twice: {sorted(t for t in set(taken) if taken.count(t) > 1)}"
        self.told.append(f"{len(taken)} results acknowledged, none lost, none taken twice; round {record['round']}")

    def _judge_memory(self):
        middle = (self.sizes[0][0] + self.sizes[-1][0]) / 2
        # Workers are one program: in a short run not each of them meets every kind of task in both halves.
        for who, names in (("coordinatord", ("coordinatord",)), ("workers", self.workers)):
            early, late = (max(s for at, n, s in self.sizes if n in names and (at < middle) == first) for first in (True, False))
            self.told.append(f"{who}: {early >> 20} MiB at most in the first half, {late >> 20} in the second")
            assert late <= GREW * early + GREW_BYTES, f"memory grew: {self.told[-1]}"
