"""The whole model against PyTorch: outputs, loss, every gradient, ten AdamW steps, samples.

The probe (tests/tools/worker/train_probe.c) trains on made-up data and writes down weights,
draws, losses and gradients; here the same steps are done with torch.optim.AdamW and compared.
"""
import os
import pathlib
import subprocess

import pytest
import torch

import where
from dit import DiT, sample

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve() / "release/tests/tools/worker/train_probe"
STEPS = 10
# device, dtype, dim, depth, heads, patch, image, self_condition.  The third is as wide as a head of DiT-S; the
# fourth has odd sizes.
CASES = [("cpu-ref", "f32", 32, 2, 2, 2, 8, 0), ("cpu", "f32", 32, 2, 2, 2, 8, 0), ("cpu", "f32", 128, 3, 2, 4, 16, 0),
         ("cpu", "f32", 36, 2, 3, 3, 9, 0), ("cpu-ref", "bf16", 32, 2, 2, 2, 8, 0), ("cpu", "bf16", 128, 3, 2, 4, 16, 0),
         ("cpu-ref", "f32", 32, 2, 2, 2, 8, 0.5), ("cpu", "f32", 36, 2, 3, 3, 9, 1), ("cpu", "bf16", 128, 3, 2, 4, 16, 0.5)]
# Heads of 72 and 256 tokens as in DiT-XL/2, and the width of DiT-S.
LARGER = [("", "f32", 144, 2, 2, 2, 32, 0), ("", "bf16", 144, 2, 2, 2, 32, 0), ("", "bf16", 384, 4, 6, 4, 32, 0),
          ("", "f32", 144, 2, 2, 2, 32, 0.5)]


class Run:
    """The probe's output, and the same model in PyTorch with its first weights."""

    def __init__(self, case, folder):
        device, dtype, dim, depth, heads, patch, image, self_condition = case
        path = folder / "probe.safetensors"
        args = [device, dtype, dim, depth, heads, patch, image, self_condition, STEPS, path]
        subprocess.run([PROBE, *map(str, args)], check=True)
        self.probe = where.read(path)
        self.bf16 = dtype == "bf16"
        self.model = DiT(image, patch, dim, depth, heads, num_classes=4, self_condition=self_condition > 0)
        self.share = self_condition
        self.model.load_state_dict(self.weights("w0"))

    def weights(self, kind):
        return {k[3:]: v for k, v in self.probe.items() if k.startswith(kind + ".")}

    def batch(self, step):
        t, eps = self.probe[f"{step}.t"], self.probe[f"{step}.eps"]
        x0 = self.probe[f"{step}.images"].permute(0, 3, 1, 2).float() / 127.5 - 1
        s = t.view(-1, 1, 1, 1)
        return (1 - s) * x0 + s * eps, eps - x0, t, self.probe[f"{step}.labels"].long()

    def loss(self, step):
        """The loss with the step's estimate, and the prediction without one."""
        x, target, t, labels = self.batch(step)
        alone = pred = self.model(x, t, labels)
        if self.probe["estimates"][step] == 1:
            estimate = x - t.view(-1, 1, 1, 1) * alone.detach()
            pred = self.model(x, t, labels, estimate)
        return alone, ((pred - target) ** 2).mean()


@pytest.fixture(scope="module", params=where.cases(CASES, LARGER), ids=lambda c: "-".join(map(str, c)))
def run(request, tmp_path_factory):
    torch.manual_seed(0)
    return Run(request.param, tmp_path_factory.mktemp("probe"))


def close(got, want, rtol, what):
    """The largest error, relative to the tensor's own scale."""
    error = ((got - want).abs().max() / want.abs().max().clamp_min(1e-8)).item()
    assert error <= rtol, f"{what}: relative error {error:.2g}, allowed {rtol:.2g}"


def test_draws(run):
    """The probe's draws are those of the trainer, and have the right distribution."""
    t = torch.cat([run.probe[f"{k}.t"] for k in range(STEPS)])
    assert 0 < t.min() and t.max() < 1 and 0.1 < t.std() < 0.35
    eps = torch.cat([run.probe[f"{k}.eps"].flatten() for k in range(STEPS)])
    assert abs(eps.mean()) < 0.03 and abs(eps.std() - 1) < 0.03
    labels = torch.cat([run.probe[f"{k}.labels"] for k in range(STEPS)])
    assert set(labels.tolist()) == {0, 1, 2, 3, 4}
    drawn = run.probe["estimates"].sum()
    assert drawn == STEPS * run.share if run.share in (0, 1) else 0 < drawn < STEPS


def test_outputs_loss_and_gradients(run):
    run.model.load_state_dict(run.weights("w0"))
    run.model.zero_grad()
    pred, loss = run.loss(0)
    loss.backward()
    # f32: sums in another order.  bf16: 8 bits of mantissa through every layer.
    rtol = 0.04 if run.bf16 else 2e-5
    close(run.probe["p0"], pred.detach(), rtol, "prediction")
    close(run.probe["losses"][0], loss.detach(), rtol / 4, "loss")
    gradients = {k: v.grad for k, v in run.model.named_parameters()}
    got = run.weights("g0")
    assert got.keys() == gradients.keys()
    for name, want in gradients.items():
        close(got[name], want, 0.08 if run.bf16 else 1e-4, f"gradient of {name}")
    norm = torch.sqrt(sum((g ** 2).sum() for g in gradients.values()))
    close(run.probe["norms"][0], norm, rtol, "gradient norm")


def test_ten_adamw_steps(run):
    run.model.load_state_dict(run.weights("w0"))
    named = list(run.model.named_parameters())
    plain = [p for n, p in named if p.ndim == 1 or "embedding_table" in n]
    decayed = [p for n, p in named if not (p.ndim == 1 or "embedding_table" in n)]
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                             lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    losses, norms = [], []
    for k in range(STEPS):
        for group in adam.param_groups:
            group["lr"] = run.probe["rates"][k].item()
        adam.zero_grad()
        loss = run.loss(k)[1]
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.5).item())
        adam.step()
        losses.append(loss.item())
    close(run.probe["losses"], torch.tensor(losses), 0.02 if run.bf16 else 5e-5, "losses")
    close(run.probe["norms"], torch.tensor(norms), 0.05 if run.bf16 else 1e-3, "norms")
    # How far each tensor moved; a step of Adam has the size of the rate whatever the gradient,
    # so that rounding shows fully where a gradient is near zero: mean, not largest, error.
    start, end = run.weights("w0"), run.weights("wN")
    for name, p in named:
        got, want = end[name] - start[name], p.detach() - start[name]
        error = ((got - want).abs().mean() / want.abs().mean()).item()
        assert error < (0.3 if run.bf16 else 2e-3), f"{name} moved {error:.2g} off"
    rates = run.probe["rates"]
    assert torch.allclose(rates[:3], torch.tensor([1 / 3, 2 / 3, 1.0]) * 1e-3)
    assert rates[3] == rates[2] and rates[-1] < rates[4]


def test_samples(run):
    run.model.load_state_dict(run.weights("wN"))
    got = sample(run.model, torch.arange(4), steps=5, guidance=2.0, noise=run.probe["noise"])
    close(run.probe["sample"], got, 0.05 if run.bf16 else 1e-4, "samples")
