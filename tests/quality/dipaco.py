"""DiPaCo on text: paths against dense models, routing against routing, calm against storm.

Bits per byte on held-out documents, the first 32 tokens of a piece not counted, byte
tokens.  All runs start from the same briefly trained dense model, which also gives the
features that documents are routed by; every path takes as many steps as the dense
model does.  DATA holds train-*.jsonl.zst and valid.jsonl.zst."""
import os

import lab
from text_job import dense, text_job, warm_start

ROUNDS, STEPS = 20, 25


class Runs:
    def __init__(self, args):
        self.here = lab.Lab("dipaco", args)
        self.data = os.path.abspath(args.data)
        self.base = None

    def dense(self, name, steps, **over):
        if self.base:
            over.setdefault("warm", warm_start(self.base))
        return dense(self.here, name, self.data, steps, depth=8, **over)

    def paths(self, name, levels, *options, workers=2, reshard=True, **over):
        recipe = f"name: dipaco, levels: {levels}"
        rounds = self.here.steps(ROUNDS)
        if reshard:
            recipe += f", reshard: [{max(1, rounds // 2)}]"
        values = dict(recipe=recipe + over.pop("more", ""), depth=8, rounds=rounds, steps=STEPS, part=", balance: 2", warm=warm_start(self.base))
        return self.here.run(name, text_job(self.here, name, self.data, **{**values, **over}), workers, *options)


def routing(report):
    try:
        return report.figure("routed once"), report.figure("routed every 64 tokens")
    except KeyError:
        return report.bits_per_byte, None


def main():
    args = lab.arguments(__doc__, "the documents").parse_args()
    if not os.path.exists(os.path.join(args.data, "valid.jsonl.zst")):
        print(f"dipaco: {args.data} has no valid.jsonl.zst; give TEXT=DIR with train-*.jsonl.zst and valid.jsonl.zst "
              "(an object a line, field text). Nothing was measured.")
        return
    runs = Runs(args)
    here, total = runs.here, runs.here.steps(ROUNDS) * STEPS
    runs.base = runs.dense("base", max(4, total // 2))
    if runs.base is None:
        return
    done = {
        "dense": runs.dense("dense", total),
        "dense 4x": runs.dense("dense-4x", total + total // 2, warm="", dim=256, heads=8, kv=4, lr="1e-3"),
        "1x1": runs.paths("1x1", "[1, 1]", reshard=False),
        "2x2 k-means": runs.paths("2x2-kmeans", "[2, 2]", reshard=False, method="kmeans", chunk=64),
        "2x2 product k-means": runs.paths("2x2-product", "[2, 2]", reshard=False, chunk=64),
        "2x2 discriminative": runs.paths("2x2", "[2, 2]", chunk=64),
        "2x2 storm": runs.paths("2x2-storm", "[2, 2]", "--drill-every", "60", chunk=64),
        "2x2 storm, moments travel": runs.paths("2x2-storm-travel", "[2, 2]", "--drill-every", "60", chunk=64,
                                                more=", moments: travel"),
        "4x4 discriminative": runs.paths("4x4", "[4, 4]", chunk=64),
    }
    rows, bits, again = [], {}, {}
    for name, r in done.items():
        if r is not None:
            bits[name], again[name] = routing(r)
            moved = sum(b for w in r.json["workers"] for b in w["bytes"]["data"].values()) / 1e6
            rows.append([name, bits[name], again[name], r.ended["seconds"] / 60, round(moved)])
    here.table(["model", "bits per byte", "re-routed every 64", "minutes", "MB of workers"], rows)
    here.plot({name: [(x, y / 0.6931) for x, y in r.curve()] for name, r in done.items() if r is not None}, "samples",
              "held-out bits per token")
    figures(here, bits, again)


def figures(here, bits, again):
    def ratio(name, a, b, bound, most):
        if a is not None and b is not None:
            here.figure(name, a / b, "x", bound, a / b <= most)

    two, four = bits.get("2x2 discriminative"), bits.get("4x4 discriminative")
    ratio("dipaco_2x2_over_1x1", two, bits.get("1x1"), "<1", 0.99999)
    ratio("dipaco_4x4_over_2x2", four, two, "<1", 0.99999)
    ratio("dipaco_2x2_over_dense", two, bits.get("dense"), "<1", 0.99999)
    ratio("dipaco_4x4_rerouted_over_dense_4x", again.get("4x4 discriminative"), bits.get("dense 4x"), "near 1", 1.05)
    ratio("dipaco_product_over_kmeans", bits.get("2x2 product k-means"), bits.get("2x2 k-means"), "<1", 0.99999)
    ratio("dipaco_discriminative_over_product", two, bits.get("2x2 product k-means"), "<1", 0.99999)
    ratio("dipaco_discriminative_over_product_rerouted", again.get("2x2 discriminative"), again.get("2x2 product k-means"), "<1", 0.99999)
    ratio("dipaco_storm_over_calm", bits.get("2x2 storm"), two, "<=1.01", 1.01)
    ratio("dipaco_storm_over_calm_rerouted", again.get("2x2 storm"), again.get("2x2 discriminative"), "<=1.01", 1.01)
    ratio("dipaco_storm_travel_over_calm", bits.get("2x2 storm, moments travel"), two, "<=1.01", 1.01)
    ratio("dipaco_moments_travel_over_restart", bits.get("2x2 storm, moments travel"), bits.get("2x2 storm"), "measured", 10)


main()
