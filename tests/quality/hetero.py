"""Unlike workers: speeds 1:2:3:6 with phases bounded by time and delayed Nesterov.

Against four equal workers at equal samples; and the wall clock against the sum of speeds:
what the equal workers' time says it would take if nobody ever waited."""
import os

import lab
from text_job import text_job


def samples(report):
    return sum(m["samples"] for m in report.metrics if m["kind"] == "round")


def seconds(report):
    """From the first phase to the end of the job."""
    return report.json["job"]["elapsed_ms"] / 1000


def main():
    args = lab.arguments(__doc__, "the documents").parse_args()
    if not os.path.exists(os.path.join(args.data, "valid.jsonl.zst")):
        print(f"hetero: {args.data} has no valid.jsonl.zst; give TEXT=DIR. Nothing was measured.")
        return
    here = lab.Lab("hetero", args)
    rounds = here.steps(12)
    same = here.run("equal", text_job("equal", args.data, recipe="name: diloco, replicas: 4", rounds=rounds, steps=24), 4,
                    "--workerd", "--threads 1 --throttle 3")
    unlike = here.run("unlike", text_job("unlike", args.data, recipe="name: diloco, replicas: 4", rounds=rounds, seconds=12,
                                         outer=", async: true"), 4,
                      *[a for n in (6, 3, 2, 1) for a in ("--workerd", f"--threads 1 --throttle {n}")])
    rows = [[n, r.eval_loss, samples(r), seconds(r)]
            for n, r in (("four equal workers", same), ("speeds 1:2:3:6", unlike)) if r]
    here.table(["run", "held-out loss", "samples", "seconds"], rows)
    if same and unlike:
        gap = 100 * (unlike.eval_loss / same.eval_loss - 1)
        here.figure("hetero_loss_gap", gap, "%", "<=1", gap <= 1)
        here.plot({"equal": same.curve(), "1:2:3:6": unlike.curve()}, "samples", "held-out loss")
    if same and unlike:
        # Throttled by n a worker has 1/n of a core's speed: what the sum of speeds would take.
        speed = (4 / 3) / (1 + 1 / 2 + 1 / 3 + 1 / 6)
        ideal = seconds(same) / samples(same) * samples(unlike) * speed
        here.figure("hetero_wall_clock", seconds(unlike) / ideal, "x", "<=1.1", seconds(unlike) / ideal <= 1.1)


main()
