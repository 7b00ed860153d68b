"""The quality figure: DiLoCo against one worker with the four-fold batch.

Both see the same number of samples of CIFAR-10; the held-out loss is taken on
the same samples with the same (t, noise).  Writes build/figures/quality.json."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def baseline(text):
    """One worker, four times the batch, plain AdamW: an outer step that copies."""
    text = re.sub(r"batch: (\d+)", lambda m: f"batch: {4 * int(m.group(1))}", text)
    text = text.replace("replicas: 4", "replicas: 1").replace("cifar10-diloco", "cifar10-baseline")
    text = re.sub(r"outer: \{rounds: (\d+), steps: (\d+).*\}",
                  r"outer: {rounds: \1, steps: \2, lr: 1.0, momentum: 0, ema: 0}", text)
    return re.sub(r"wire: .*", "wire: {up: f32, down: f32}", text)


def train(args, name, text, workers):
    folder = os.path.join(args.out, name)
    os.makedirs(folder, exist_ok=True)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w", encoding="utf-8") as f:
        f.write(text)
    subprocess.run([f"{args.build}/bin/skerry", "run", job, "--workers", str(workers), "--out", folder],
                   check=True)
    losses = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8")]
    rounds = [r for r in losses if r["kind"] == "round" and r["eval_loss"] is not None]
    return rounds[-1]["eval_loss"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--data", required=True, help="folder with CIFAR-10 as WebDataset tars (train-*.tar)")
    p.add_argument("--out", default=None, help="keep the runs here")
    p.add_argument("--set", action="append", default=[], help="PATTERN=TEXT replaced in the job file")
    args = p.parse_args()
    if not os.path.exists(os.path.join(args.data, "train-00000.tar")):
        print(f"quality: {args.data} has no train-00000.tar; give CIFAR10=DIR with CIFAR-10 as WebDataset "
              "tars (KEY.jpg, KEY.cls). Nothing was measured.")
        return
    text = open(os.path.join(HERE, "cifar10.yaml"), encoding="utf-8").read()
    text = text.replace("@DATA@", os.path.abspath(args.data) + "/train-*.tar")
    for change in args.set:
        old, new = change.split("=", 1)
        if old not in text:
            sys.exit(f"quality: '{old}' is not in the job file")
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        args.out = args.out or scratch
        one = train(args, "baseline", baseline(text), 1)
        four = train(args, "diloco", text, 4)
    gap = 100 * (four - one) / one
    row = {"name": "diloco_loss_gap", "value": gap, "unit": "%", "bound": "<=1", "holds": gap <= 1.0,
           "baseline_loss": one, "diloco_loss": four}
    os.makedirs("build/figures", exist_ok=True)
    with open("build/figures/quality.json", "w", encoding="utf-8") as f:
        json.dump([row], f, indent=2)
    print(f"held-out loss: one worker with 4x the batch {one:.5f}, four workers {four:.5f}: gap {gap:+.2f} % "
          f"(at most 1 %) {'holds' if row['holds'] else 'MISSED'}")


main()
