"""Unlike workers: speeds 1:2:3:6 with phases bounded by time and delayed Nesterov.

Against four equal workers at equal samples; and the wall clock against the sum of speeds:
what the workers' own samples per second would give if nobody ever waited."""
import os

import lab
from text_job import text_job


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
    rows = [[n, r.eval_loss, sum(m["samples"] for m in r.metrics if m["kind"] == "round"), r.ended["seconds"]]
            for n, r in (("four equal workers", same), ("speeds 1:2:3:6", unlike)) if r]
    here.table(["run", "held-out loss", "samples", "seconds"], rows)
    if same and unlike:
        gap = 100 * (unlike.eval_loss / same.eval_loss - 1)
        here.figure("hetero_loss_gap", gap, "%", "<=1", gap <= 1)
        here.plot({"equal": same.curve(), "1:2:3:6": unlike.curve()}, "samples", "held-out loss")
    if unlike:
        train = unlike.json["job"]["train_seconds"]
        ideal = rows[-1][2] / sum(w["throughput"] for w in unlike.json["workers"])
        here.figure("hetero_wall_clock", train / ideal, "x", "<=1.1", train / ideal <= 1.1)


main()
