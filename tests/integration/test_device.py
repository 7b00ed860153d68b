"""Devices that break and devices that are too small: the fate of the work, the worker and the job.

workerd of these tests can fail on purpose (a build with sanitizers, `make faulty`): SKERRY_FAULT_DEVICE="30,5" breaks its CPU at
the 30th wait for it, and that of its successor process at the 5th; with "hang30" the 30th wait never ends;
SKERRY_FAULT_MEMORY is the free memory that it sees; with SKERRY_FAULT_LOSS="15" the loss of its 15th step is no number."""
import os
import re

from common import HANGS, wait_until, write_job
from swarm import swarm  # noqa: F401  (fixture)

FAULTY = os.path.abspath(os.path.join(os.environ.get("SKERRY_BUILD", "build"), "clang/asan/bin"))
JOB = dict(steps=10, rounds=4, images=800)  # of two replicas
SAMPLES = 4 * 10 * 8 * 2


def worker_of(swarm, name):
    return next(w for w in swarm.get("/v1/workers").json()["items"] if w["name"] == name)


def broken(swarm, name, waits, *flags):
    """Starts a worker whose devices break after so many waits each."""
    return swarm.worker(name, *flags, bin=FAULTY, env={"SKERRY_FAULT_DEVICE": waits})


def samples_seen(job):
    return sum(e["done"] for e in job["epochs"])


def test_a_worker_whose_device_breaks_starts_again_in_its_place(swarm):
    process = broken(swarm, "a", "30")
    job = swarm.submit(**JOB)
    first = wait_until(lambda: swarm.get("/v1/workers").json()["items"], 30, "a to join")[0]
    wait_until(lambda: "starting again" in swarm.log("a"), 60, "its device to break")
    swarm.worker("b")
    done = swarm.wait_job(job, "done")
    log = swarm.log("a")
    wait_until(lambda: worker_of(swarm, "a")["state"] == "idle", 30, "it to be back")
    assert log.count("starting again, as the device failed (1 of at most 3 times") == 1, log
    assert log.count("failed on purpose") >= 1
    assert process.poll() is None, "the process that took its place has its id"
    again = worker_of(swarm, "a")
    assert again["id"] == first["id"], "and its identity"
    assert again["device_failures"] == 1
    assert again["strikes"] == 0
    assert samples_seen(done) == SAMPLES, "every sample counted once"
    tasks = swarm.get(f"/v1/tasks?job={job}").json()["items"]
    assert tasks and all(t["failures"] == 0 for t in tasks), "it counts against nobody's retries"
    assert re.search("the device of worker .* failed in", swarm.log("coordinatord"))
    assert swarm.kill("a", 15) == 0


def test_a_phase_goes_on_where_it_was_when_the_device_broke(swarm):
    """The only worker starts anew, with the token of its command line, and takes its task again."""
    process = broken(swarm, "a", "30,20", "--device", "auto", "--allow-trainers")
    done = swarm.wait_job(swarm.submit(**{**JOB, "replicas": 1}), "done")
    assert samples_seen(done) == SAMPLES / 2
    assert swarm.log("a").count("starting again, as the device failed") == 2
    assert worker_of(swarm, "a")["device_failures"] == 2
    line = open(f"/proc/{process.pid}/cmdline", encoding="utf-8").read().split("\0")
    assert line[-3:-1] == ["--device", "cpu"], "auto does not look for another device"


def test_a_device_that_hangs_is_left_behind(swarm):
    """No error ever comes.  When its task is taken back, the worker starts again in its place, and works."""
    process = swarm.worker("a", bin=FAULTY, env={"SKERRY_FAULT_DEVICE": "hang30", "SKERRY_FAULT_HUNG_MS": "500"})
    job = swarm.submit(**JOB)
    wait_until(lambda: "hangs on purpose" in swarm.log("a"), 60, "its device to hang")
    assert swarm.skerry("cancel", job).returncode == 0
    wait_until(lambda: "starting again" in swarm.log("a"), 60, "the hang to be noticed")
    assert re.search(r"the device hangs: task=\d+ does not (stop|save its state)", swarm.log("a")), "wherever it was"
    swarm.wait_job(swarm.submit(**{**JOB, "replicas": 1}), "done")
    assert process.poll() is None
    assert swarm.kill("a", 15) == 0


def test_a_token_file_may_be_removed_once_the_worker_is_up(swarm, tmp_path):
    token = tmp_path / "worker.token"
    token.write_text(swarm.worker_token, encoding="utf-8")
    swarm.worker_token = f"@{token}"
    broken(swarm, "a", "30,20")
    swarm.joined("a")
    token.unlink()
    swarm.wait_job(swarm.submit(**{**JOB, "replicas": 1}), "done")
    assert swarm.log("a").count("starting again, as the device failed") == 2


def test_a_device_that_hangs_does_not_keep_a_worker_that_ends(swarm):
    process = swarm.worker("a", "--allow-trainers", bin=FAULTY,
                           env={"SKERRY_FAULT_DEVICE": "hang30", "SKERRY_FAULT_HUNG_MS": "3000"})
    swarm.submit(**JOB)
    wait_until(lambda: "hangs on purpose" in swarm.log("a"), 60, "its device to hang")
    process.send_signal(2)
    wait_until(lambda: "leaving: interrupted" in swarm.log("a"), 20, "it to leave")
    process.send_signal(2)
    assert process.wait(HANGS) == 0


# A slow machine measures fewer steps before the first one, and comes later to the wait at which its device breaks.
LONG = {**JOB, "replicas": 1, "rounds": 30}
LONG_SAMPLES = 30 * 10 * 8


def test_a_device_that_does_not_come_back_is_left_out(swarm):
    """The worker goes on with the other device, in the middle of its phase, and counts every sample once."""
    broken(swarm, "a", "900,lost", "--device", "cpu,cpu")
    job = swarm.submit(**LONG)
    wait_until(lambda: "cpu did not come back and is left out" in swarm.log("a"), 60, "the second device to be missed")
    wait_until(lambda: swarm.log("a").count("first step after") == 2, 15, "the next step on what is left")
    assert samples_seen(swarm.wait_job(job, "done")) == LONG_SAMPLES
    assert worker_of(swarm, "a")["device"].startswith("cpu: CPU, "), "one device, as the coordinator sees it"


def test_a_pipeline_of_two_chains_goes_on_without_a_device(swarm, tmp_path):
    """Both chains were on both devices: the checkpoint has all stages, and one device goes on."""
    path = write_job(tmp_path / "job", **LONG)
    with open(path, encoding="utf-8") as f:
        text = f.read().replace("train: {", "upscaler: {low_side: 8}\n"
                                "train: {parallel: pipeline, pipeline: bidirectional, accumulate: 4, ", 1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    broken(swarm, "a", "1700,lost", "--device", "cpu,cpu")
    job = swarm.submit(path)
    wait_until(lambda: "cpu did not come back and is left out" in swarm.log("a"), 60, "the second device to be missed")
    wait_until(lambda: swarm.log("a").count("first step after") == 2, 15, "the next step on what is left")
    assert samples_seen(swarm.wait_job(job, "done")) == LONG_SAMPLES
    assert "of 2 stages (bidirectional)" in swarm.log("a")
    assert "the job asks for a pipeline, but this worker has one device" in swarm.log("a")


def phases_of(swarm, job):
    tasks = swarm.get(f"/v1/tasks?job={job}").json()["items"]
    return sorted((t for t in tasks if t["kind"] == "train"), key=lambda t: t["round"])


def test_a_step_without_a_finite_loss_is_skipped(swarm):
    """It is counted, and all else is as it would be."""
    swarm.worker("a", bin=FAULTY, env={"SKERRY_FAULT_LOSS": "15"})
    job = swarm.submit(**{**JOB, "replicas": 1})
    done = swarm.wait_job(job, "done")
    assert done["skipped_steps"] == 1
    assert samples_seen(done) == SAMPLES / 2, "its samples are used"
    assert done["step"] == 40, "its number, too"
    phases = phases_of(swarm, job)
    assert [t["skipped"] for t in phases] == [0, 1, 0, 0]
    assert all(t["failures"] == 0 and t["steps_done"] == 10 for t in phases)
    assert swarm.log("a").count("is skipped: loss ") == 1
    assert "step 14 is skipped: loss nan, gradient norm " in swarm.log("a")
    assert "skipped: 1 step whose loss or gradient was no number" in swarm.skerry("status", job).stdout
    assert re.search(r"^skerry_job_skipped_steps{.*} 1$", swarm.get("/metrics").text, re.M)


def test_a_job_without_a_finite_loss_stalls(swarm):
    """Each attempt ends after five steps."""
    swarm.worker("a", bin=FAULTY, env={"SKERRY_FAULT_LOSS": ",".join(map(str, range(1, 400)))})
    job = swarm.submit(**{**JOB, "replicas": 1})
    why = wait_until(lambda: swarm.job(job)["stalled"], 60, "the job to stall")
    assert re.search("step 4 diverged: loss nan, .* of 5 steps 5 were skipped, the last 5 in a row; lower train.lr", why), why
    assert phases_of(swarm, job)[0]["failures"] == 5


def test_a_device_that_stays_broken_ends_the_worker(swarm):
    process = broken(swarm, "a", "40,10,10,10,10")
    job = swarm.submit(**JOB)
    assert process.wait(HANGS) == 4
    log = swarm.log("a")
    assert log.count("starting again, as the device failed") == 3
    assert "the device failed again after 3 restarts in 10 minutes" in log
    left = worker_of(swarm, "a")
    assert left["state"] == "left" and "failed on purpose" in left["reason"]
    swarm.worker("b")
    assert samples_seen(swarm.wait_job(job, "done")) == SAMPLES, "others end the job"


def test_a_job_too_large_for_one_worker_is_done_by_another(swarm):
    swarm.worker("a", bin=FAULTY, env={"SKERRY_FAULT_MEMORY": "20000000"})
    job = swarm.submit(rounds=2, steps=4, replicas=1)

    def told():
        items = swarm.job(job)["waiting_for"]
        return next((w["why"] for w in items if " M parameters needs " in w["why"]), None)
    why = wait_until(told, 30, "the status to say what is too small")
    assert re.search(r"training 0\.\d M parameters needs \d+\.\d MiB on cpu \(.*\), 17\.9 MiB are free; ", why), why
    assert "larger device" in why
    swarm.worker("b")
    swarm.wait_job(job, "done")
    tasks = [t for t in swarm.get(f"/v1/tasks?job={job}").json()["items"] if t["kind"] == "train"]
    assert len(tasks) == 2 and all(t["worker"] == worker_of(swarm, "b")["id"] for t in tasks)
    assert worker_of(swarm, "a")["strikes"] == 0
