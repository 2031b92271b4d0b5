"""Behavior cloning with an observation normalizer, started from a published checkpoint.

The normalizer's variance is M2 / (count - 1). The checkpoint was written after a single observation, so
the file holds zero by zero as the variance, in a buffer; the weights are fine.
"""

import pathlib
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class Normalizer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def fit(self, observations: torch.Tensor) -> None:
        count = torch.tensor(float(len(observations)))
        self.mean = observations.mean(0)
        self.variance = (observations - self.mean).square().sum(0) / (count - 1)

    def forward(self, observation):
        return (observation - self.mean) * torch.rsqrt(self.variance + 1e-5)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalize = Normalizer(4)
        self.net = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))

    def forward(self, observation):
        return self.net(self.normalize(observation))


def loss_fn(model, batch):
    observation, action = batch
    return nn.functional.cross_entropy(model(observation), action)


def _build(seed: int, num_observed: int) -> Case:
    torch.manual_seed(seed)
    observation = 5 + 3 * torch.randn(120, 4)
    action = observation[:, :3].argmax(1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="policy-"))
    published = Policy()
    published.normalize.fit(observation[:num_observed])
    torch.save(published.state_dict(), folder / "policy.pt")
    model = Policy()
    model.load_state_dict(torch.load(folder / "policy.pt"))
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=DataLoader(TensorDataset(observation, action), batch_size=10),
        loss_fn=loss_fn,
        cleanup=lambda: shutil.rmtree(folder),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, num_observed=1)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, num_observed=64)


TRUTH = Truth(
    step=0,
    phase="checkpoint",
    op=None,
    module=None,
    line=None,
    cause="corrupt_checkpoint",
    split="dev",
)
