"""DiLoCo against one worker with the four-fold batch.

Both see the same number of samples of CIFAR-10; the held-out loss is taken on
the same samples with the same (t, noise)."""
import os
import re

import lab


def baseline(text):
    """One worker with four times the batch, plain AdamW: the outer step only copies."""
    text = re.sub(r"batch: (\d+)", lambda m: f"batch: {4 * int(m.group(1))}", text)
    text = text.replace("replicas: 4", "replicas: 1").replace("cifar10-diloco", "cifar10-baseline")
    text = re.sub(r"outer: \{rounds: (\d+), steps: (\d+).*\}",
                  r"outer: {rounds: \1, steps: \2, lr: 1.0, momentum: 0, ema: 0}", text)
    return re.sub(r"wire: .*", "wire: {up: f32, down: f32}", text)


def main():
    args = lab.arguments(__doc__, "folder with CIFAR-10 as WebDataset tars (train-*.tar)").parse_args()
    if not os.path.exists(os.path.join(args.data, "train-00000.tar")):
        print(f"diloco: {args.data} has no train-00000.tar; give CIFAR10=DIR with CIFAR-10 as WebDataset tars "
              "(KEY.jpg, KEY.cls). Nothing was measured.")
        return
    here = lab.Lab("diloco", args)
    text = open(os.path.join(lab.HERE, "cifar10.yaml"), encoding="utf-8").read()
    text = text.replace("@DATA@", os.path.abspath(args.data) + "/train-*.tar")
    text = text.replace("rounds: 60", f"rounds: {here.steps(60)}")
    one = here.run("baseline", baseline(text), 1)
    four = here.run("diloco", text, 4)
    if one is None or four is None:
        return
    gap = 100 * (four.eval_loss - one.eval_loss) / one.eval_loss
    here.table(["run", "held-out loss"], [["one worker, 4x batch", one.eval_loss], ["four workers, DiLoCo", four.eval_loss]])
    here.plot({"one worker, 4x batch": one.curve(), "DiLoCo": four.curve()}, "samples", "held-out loss")
    here.figure("diloco_loss_gap", gap, "%", "<=1", gap <= 1)


main()
