"""A logistic regression in NumPy that predicts the next byte of a text from the last one: a trainer needs no
framework.  By hand: python3 train.py texts.jsonl; on a swarm: trainer-numpy.yaml."""
import sys

import numpy as np

import skerry

SYMBOLS = 257  # bytes, and the end of a text
model = {"weight": np.zeros((SYMBOLS, SYMBOLS), np.float32), "bias": np.zeros(SYMBOLS, np.float32)}


def probabilities(now):
    logits = model["weight"][now] + model["bias"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def pairs(samples):
    """The bytes of a batch, and for each the one that follows."""
    texts = [s.tokens for s in samples]
    return np.concatenate([t[:-1] for t in texts]), np.concatenate([t[1:] for t in texts]), len(texts)


def learn(now, following, rate):
    p = probabilities(now)
    loss = -np.log(p[np.arange(len(now)), following]).mean()
    p[np.arange(len(now)), following] -= 1
    gradient = np.zeros_like(model["weight"])
    np.add.at(gradient, now, p)
    model["weight"] -= rate * gradient / np.maximum(np.bincount(now, minlength=SYMBOLS), 1)[:, None]
    model["bias"] -= rate * p.mean(axis=0)
    return loss


alone = skerry.Alone(skerry.read_texts(sys.argv[1])) if len(sys.argv) > 1 else None
with skerry.join(model, alone=alone) as island:
    @island.evaluate
    def evaluate(evaluation):
        for now, following, n in evaluation.batches(pairs):
            p = probabilities(now)[np.arange(len(now)), following]
            evaluation.add(-np.log(p).sum(), units=len(now), samples=n)

    @island.sample
    def sample(drawing):
        rng, text = np.random.default_rng(drawing.seed), list(drawing.prompt.encode() or b" ")
        for _ in range(drawing.tokens):
            p = probabilities(np.array(text[-1:]))[0].astype(float)
            text.append(int(rng.choice(SYMBOLS, p=p / p.sum())))
        return bytes(b for b in text if b < 256).decode("utf-8", "replace")

    for phase in island.phases():
        for now, following, n in phase.batches(pairs):
            loss = learn(now, following, 2.0 * phase.lr_scale)
            phase.step(loss=loss, samples=n)
