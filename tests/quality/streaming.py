"""Streaming DiLoCo: equal loss at a fraction of the peak bandwidth.

The same text job three times: plain DiLoCo; with six fragments; with six fragments and
overlap on a link of 20 Mbit/s.  Peak: the most bytes that a worker moved in one second."""
import os

import lab
from text_job import text_job


def main():
    args = lab.arguments(__doc__, "the documents").parse_args()
    if not os.path.exists(os.path.join(args.data, "valid.jsonl.zst")):
        print(f"streaming: {args.data} has no valid.jsonl.zst; give TEXT=DIR. Nothing was measured.")
        return
    here = lab.Lab("streaming", args)
    rounds = here.steps(12)

    def job(name, outer):
        return text_job(here, name, args.data, recipe="name: diloco, replicas: 2", rounds=rounds, steps=72, outer=", warmup: 4" + outer)

    plain = here.run("plain", job("plain", ""), 2)
    parts = here.run("fragments", job("fragments", ", fragments: 6, delay: 6, mix: 0.5"), 2)
    slow = here.run("slow-link", job("slow-link", ", fragments: 6, delay: 6, mix: 0.5"), 2, "--workerd",
                    "--max-bandwidth 20Mbit")
    rows = [[n, r.eval_loss, r.json["job"]["network"]["peak_bytes_per_s"], 100 * r.json["job"]["network"]["waited_share"]]
            for n, r in (("plain DiLoCo", plain), ("6 fragments", parts), ("6 fragments, 20 Mbit/s", slow)) if r]
    here.table(["run", "held-out loss", "peak B/s", "waited %"], rows)
    if plain and parts:
        gap = 100 * (parts.eval_loss / plain.eval_loss - 1)
        here.figure("streaming_loss_gap", gap, "%", "<=0.5", gap <= 0.5)
        peak = parts.json["job"]["network"]["peak_bytes_per_s"] / plain.json["job"]["network"]["peak_bytes_per_s"]
        here.figure("streaming_peak_share", peak, "x", "<=0.25", peak <= 0.25)
        here.plot({"plain": plain.curve(), "6 fragments": parts.curve()}, "samples", "held-out loss")
    if slow:
        share = 100 * slow.json["job"]["network"]["waited_share"]
        here.figure("streaming_waited_20mbit", share, "%", "<=2", share <= 2)


main()
