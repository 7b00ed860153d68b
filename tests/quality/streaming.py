"""Streaming DiLoCo: equal loss at a fraction of the peak bandwidth.

The same text job, from the same briefly trained model: plain DiLoCo; with six fragments that
travel during training; the same on links of 20 Mbit/s; and without mixing.  Peak: the most
bytes that all workers together moved in one second."""
import os

import lab
from text_job import dense, text_job, warm_start

# A phase that is long beside what a fragment needs to travel, as it is wherever this pays.
ROUNDS, STEPS, BASE = 8, 144, 144
FRAGMENTS = ", fragments: 6, delay: 5, mix: "


def network(report, key):
    return report.json["job"]["network"][key]


def learning(report):
    """The points (samples, training loss of a round)."""
    samples, points = 0, []
    for m in report.metrics:
        if m["kind"] == "round":
            samples += m["samples"]
            points.append((samples, m["loss"]))
    return points


def main():
    args = lab.arguments(__doc__, "the documents").parse_args()
    if not os.path.exists(os.path.join(args.data, "valid.jsonl.zst")):
        print(f"streaming: {args.data} has no valid.jsonl.zst; give TEXT=DIR. Nothing was measured.")
        return
    here = lab.Lab("streaming", args)
    rounds = here.steps(ROUNDS)
    base = dense(here, "base", args.data, BASE)
    if base is None:
        return

    def run(name, outer, *options):
        # Judged at the end alone: who waits for a worker that evaluates does not wait for the network.
        job = text_job(here, name, args.data, recipe="name: diloco, replicas: 2", rounds=rounds, steps=STEPS, every=rounds,
                       warm=warm_start(base), outer=outer)
        return here.run(name, job, 2, *options)

    plain = run("plain", "")
    parts = run("fragments", FRAGMENTS + "0.5")
    slow = run("slow-link", FRAGMENTS + "0.5", "--workerd", "--max-bandwidth 20Mbit")
    unmixed = run("unmixed", FRAGMENTS + "0")
    rows = [[n, r.eval_loss, network(r, "peak_bytes_per_s") / 1e6, 100 * network(r, "waited_share")]
            for n, r in (("plain DiLoCo", plain), ("6 fragments", parts), ("6 fragments, 20 Mbit/s", slow),
                         ("6 fragments, mix 0", unmixed)) if r]
    here.table(["run", "held-out loss", "peak MB/s", "waited %"], rows)
    if plain and parts:
        gap = 100 * (parts.eval_loss / plain.eval_loss - 1)
        here.figure("streaming_loss_gap", gap, "%", "<=0.5", gap <= 0.5)
        peak = network(parts, "peak_bytes_per_s") / network(plain, "peak_bytes_per_s")
        here.figure("streaming_peak_share", peak, "x", "<=0.25", peak <= 0.25)
        here.plot({"plain": learning(plain), "6 fragments": learning(parts)}, "samples", "loss in training")
    if slow:
        share = 100 * network(slow, "waited_share")
        here.figure("streaming_waited_20mbit", share, "%", "<=2", share <= 2)


main()
