"""Workers of different speeds, 1:2:3:6, with phases bounded by time and delayed Nesterov momentum.

All runs begin with the same briefly trained model.  Four equal workers with the same sum of speeds make as
many steps in rounds of plain DiLoCo.  The wall-clock time is compared with the time of the same
samples at the rate of the equal workers' rounds.  A worker throttled by n has 1/n of a core; all
four have one core together, so two cores are enough."""
import os

import lab
from text_job import dense, text_job, warm_start

UNLIKE, EQUAL = (12, 6, 4, 2), (4, 4, 4, 4)
SECONDS, ROUNDS, BATCH, BASE = 24, 12, 8, 144


def seconds(report):
    return sum(m["seconds"] for m in report.metrics if m["kind"] == "round")


def samples(report):
    """The rows that were trained on; the ledger leaves out those that a phase had only begun."""
    return BATCH * len(EQUAL) * [m["step"] for m in report.metrics if m["kind"] == "round"][-1]


def main():
    args = lab.arguments(__doc__, "the documents").parse_args()
    if not os.path.exists(os.path.join(args.data, "valid.jsonl.zst")):
        print(f"hetero: {args.data} has no valid.jsonl.zst; give TEXT=DIR. Nothing was measured.")
        return
    here = lab.Lab("hetero", args)
    rounds = here.steps(ROUNDS)
    base = dense(here, "base", args.data, BASE)
    if base is None:
        return

    def run(name, throttles, **over):
        job = text_job(here, name, args.data, recipe="name: diloco, replicas: 4", rounds=rounds, every=rounds, warm=warm_start(base), **over)
        workers = [a for n in throttles for a in ("--workerd", f"--threads 1 --throttle {n}")]
        return here.run(name, job, 4, *workers)

    unlike = run("unlike", UNLIKE, seconds=SECONDS, outer=", async: true")
    same = None
    if unlike:
        steps = max(1, round(samples(unlike) / (BATCH * rounds * len(EQUAL))))
        same = run("equal", EQUAL, steps=steps)
    rows = [[n, r.eval_loss, samples(r), seconds(r)]
            for n, r in (("four equal workers", same), ("speeds 1:2:3:6", unlike)) if r]
    here.table(["run", "held-out loss", "samples", "seconds"], rows)
    if not same or not unlike:
        return
    here.plot({"equal": same.curve(), "1:2:3:6": unlike.curve()}, "samples", "held-out loss")
    gap = 100 * (unlike.eval_loss / same.eval_loss - 1)
    here.figure("hetero_loss_gap", gap, "%", "<=1", gap <= 1)
    ideal = samples(unlike) * seconds(same) / samples(same)
    clock = seconds(unlike) / ideal
    here.figure("hetero_wall_clock", clock, "x", "<=1.1", clock <= 1.1)


main()
