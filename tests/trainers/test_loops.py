"""The Trainer of transformers and loops of accelerate around phases that are played here."""
import os
import pathlib
import sys

import accelerate
import pytest
import torch
import transformers

PACKAGE = pathlib.Path(os.environ.get("SKERRY_BUILD", "build")).resolve() / "python"
sys.path.insert(0, str(PACKAGE))
import skerry._island  # noqa: E402
import skerry.accelerate  # noqa: E402
import skerry.hf  # noqa: E402

SIZE = 64


class Phase(skerry._island.Phase):
    """A phase of `steps` steps in a job that warms up over ten."""

    def __init__(self, seed=1, steps=3):
        self.alone, self.seed, self.steps, self.done_steps, self._since, self.told = False, seed, steps, 0, 0, []

    more = property(lambda self: self.done_steps < self.steps)
    lr_scale = property(lambda self: (self.done_steps + 1) / 10)

    def step(self, **numbers):
        self.told.append(numbers)
        self.done_steps, self._since = self.done_steps + 1, 0


class Model(torch.nn.Module):
    """Notes the numbers of the samples that it is given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, x):
        self.seen += x.flatten().tolist()
        return {"loss": (self.weight * x.float()).mean()}


def train(folder, *phases, dataset=None, **arguments):
    """Trains by the Trainer: the model."""
    model = Model()
    callback = skerry.hf.Callback(model)
    callback.island.phases = lambda: iter(phases)
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=skerry.hf.FOREVER, per_device_train_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True,
        **{"lr_scheduler_type": "constant", "learning_rate": 1.0, "optim": "sgd", **arguments})
    transformers.Trainer(model, arguments, train_dataset=dataset or [{"x": torch.tensor([i])} for i in range(SIZE)],
                         callbacks=[callback]).train()
    return model


def order_of_trainer(folder, seed):
    return train(folder, Phase(seed)).seen


def order_of_loop(seed, seedable=False, generator=False):
    """The samples of a loop that begins as every script does, with its own seed."""
    accelerate.utils.set_seed(42)
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(range(SIZE), batch_size=4, shuffle=True,
                                         generator=torch.Generator().manual_seed(7) if generator else None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loop = skerry.accelerate.Loop(accelerator, model, optimizer, loader)
    loop.island.phases = lambda: iter([Phase(seed)])
    for batch in loop:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch)["loss"])
            optimizer.step()
    return model.seen


@pytest.mark.parametrize("order", [
    order_of_trainer, lambda _, seed: order_of_loop(seed), lambda _, seed: order_of_loop(seed, seedable=True),
    lambda _, seed: order_of_loop(seed, generator=True)], ids=["trainer", "loop", "seedable sampler", "generator"])
def test_each_phase_begins_elsewhere(tmp_path, order):
    """Two replicas with a script's seed, and a trainer that is started again: their first batches differ."""
    first, second, again = order(tmp_path, 2**63 + 1), order(tmp_path, 2**63 + 2), order(tmp_path, 2**63 + 1)
    assert len(first) == len(set(first)) == 12 and first == again and first != second, (first, second, again)


def test_an_epoch_is_shuffled_anew(tmp_path):
    model = train(tmp_path, Phase(steps=2 * SIZE // 4))
    assert sorted(model.seen[:SIZE]) == sorted(model.seen[SIZE:]) and model.seen[:SIZE] != model.seen[SIZE:]


def recursive(self, num_training_steps, optimizer=None):
    """A scheduler that computes each rate from the one before."""
    self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
    return self.lr_scheduler


@pytest.mark.parametrize("factor", [1, 0.5])
def test_rates_follow_the_job(tmp_path, monkeypatch, factor):
    """The job's schedule is a factor of the script's, over phases; the steps are made with the product."""
    if factor < 1:
        monkeypatch.setattr(transformers.Trainer, "create_scheduler", recursive)
    used = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *a, **k: (used.append(self.param_groups[0]["lr"]), step(self, *a, **k)))
    first, second = Phase(), Phase()
    train(tmp_path, first, second)
    want = [factor**i * scale for i, scale in enumerate([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])]
    assert [told["lr"] for told in first.told + second.told] == pytest.approx(want) == used[:6]


def test_a_share_of_endless_steps_is_refused(tmp_path):
    with pytest.raises(skerry.Error, match="set train.warmup in the job file"):
        train(tmp_path, Phase(), warmup_steps=0.1)
    train(tmp_path, Phase(), warmup_steps=10)


def test_no_checkpoints(tmp_path, capsys):
    """The Trainer's default would fill the worker's disk."""
    train(tmp_path, Phase(steps=5), save_steps=2)
    assert not list(tmp_path.glob("checkpoint-*")) and "saves no checkpoints" in capsys.readouterr().err
