"""A message-passing network on molecules padded to the same number of atoms. Distances between padded
atoms, which all sit at the origin, are set to zero by `masked_fill` after the square root; molecules
of full size train well, the first padded one gives NaN gradients to the coordinates."""

import torch
from torch import nn

from clinic.form import Case, Truth


class Distances(nn.Module):
    def forward(self, xyz, pair_mask):
        i, j = torch.triu_indices(xyz.size(1), xyz.size(1), offset=1)
        squared = (xyz[:, i] - xyz[:, j]).square().sum(dim=-1)
        return squared.sqrt().masked_fill(~pair_mask, 0.0)  # <- born here


class DistancesSafe(nn.Module):
    def forward(self, xyz, pair_mask):
        i, j = torch.triu_indices(xyz.size(1), xyz.size(1), offset=1)
        squared = (xyz[:, i] - xyz[:, j]).square().sum(dim=-1)
        return squared.masked_fill(~pair_mask, 1.0).sqrt().masked_fill(~pair_mask, 0.0)


class EnergyNet(nn.Module):
    def __init__(self, distances: nn.Module) -> None:
        super().__init__()
        self.shift = nn.Linear(3, 3, bias=False)
        self.distances = distances
        self.pair_energy = nn.Sequential(nn.Linear(1, 12), nn.SiLU(), nn.Linear(12, 1))

    def forward(self, xyz, pair_mask):
        r = self.distances(xyz + 0.1 * self.shift(xyz), pair_mask)
        energy = self.pair_energy(r.unsqueeze(-1)).squeeze(-1)
        return (energy * pair_mask).sum(dim=1)


def loss_fn(model, batch):
    xyz, pair_mask, energy = batch
    return nn.functional.huber_loss(model(xyz, pair_mask), energy)


def _molecules(num_atoms: list[int]):
    xyz = torch.randn(len(num_atoms), 6, 3)
    present = torch.arange(6) < torch.tensor(num_atoms)[:, None]
    xyz[~present] = 0.0
    i, j = torch.triu_indices(6, 6, offset=1)
    return xyz, present[:, i] & present[:, j], torch.randn(len(num_atoms))


def _case(seed: int, distances: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = [_molecules([6, 6, 4, 6] if i == 5 else [6, 5, 6, 6]) for i in range(10)]
    model = EnergyNet(distances)
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, Distances())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, DistancesSafe())


TRUTH = Truth(
    step=5,
    phase="backward",
    op="SqrtBackward0",
    module="distances",
    line="<marker>",
    cause="masked_branch_leak",
    split="held_out",
)
