"""A small byte-level GPT in PyTorch on a swarm; plain.py trains it alone, and `diff` shows the changes."""
import sys

import torch
import torch.nn.functional as F
from torch import nn

import skerry

SYMBOLS, CONTEXT, WIDTH, HEADS, DEPTH = 257, 64, 64, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (y.view(n, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, 2))
        a = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        a = a.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf")).softmax(3)
        x = x + self.out((a @ v).transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places.weight[:x.shape[1]])))

    def loss(self, batch, reduction="mean"):
        logits = self(batch[:, :-1].clamp(min=0))
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=-1, reduction=reduction)


def pad(texts):
    """Tokens of several texts as rows, padded with -1."""
    rows = [torch.tensor(t[:CONTEXT], dtype=torch.long) for t in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def collate(samples):
    return pad([s.tokens for s in samples])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    alone = skerry.Alone(skerry.read_texts(sys.argv[1], CONTEXT)) if len(sys.argv) > 1 else None
    with skerry.join(model, optimizer=optimizer, alone=alone) as island:
        @island.evaluate
        def evaluate(evaluation):
            for batch in evaluation.batches(collate):
                loss = model.loss(batch, reduction="sum").detach()
                evaluation.add(loss, units=int((batch[:, 1:] >= 0).sum()), samples=len(batch))

        for phase in island.phases():
            for batch in phase.batches(collate):
                loss = model.loss(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                phase.step(loss=loss.item(), samples=len(batch))
