"""A training loop of accelerate with accumulated gradients: it predicts each byte of a text from the one before.  Without
a worker it trains on its own loader."""
import os

import accelerate
import torch

import skerry
import skerry.accelerate

torch.manual_seed(0)
accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(torch.nn.Embedding(257, 16), torch.nn.Linear(16, 257))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)


def collate(samples):
    """A batch of tokens, with 0 as padding after each text."""
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(s.tokens.copy()).long() for s in samples], batch_first=True)


data = {"collate": collate}
if "SKERRY_TRAINER_FD" not in os.environ:
    data = {"loader": [torch.randint(257, (4, 9)) for _ in range(3)], "alone": skerry.Alone(steps=10)}
loop = skerry.accelerate.Loop(accelerator, model, optimizer, **data)
for batch in loop:
    with accelerator.accumulate(model):
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=0)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
