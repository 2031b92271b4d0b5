"""A message-passing network regresses formation energies of small molecules.

The energies come from a directory of JSON lines written by a quantum chemistry job. For one
molecule the self-consistent field did not converge and the job wrote `Infinity`, which Python's
JSON reader accepts. Only the label is bad; the graph is fine.
"""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

NUM_ATOMS = 6


def run_chemistry_jobs(count: int, unconverged: int | None) -> list[str]:
    generator = torch.Generator().manual_seed(7)
    lines = []
    for index in range(count):
        species = torch.randint(0, 4, (NUM_ATOMS,), generator=generator).tolist()
        bonds = (torch.rand(NUM_ATOMS, NUM_ATOMS, generator=generator) < 0.4).int()
        bonds = (bonds | bonds.T).tolist()
        energy = -0.3 * sum(species) + 0.05 * sum(map(sum, bonds))
        if index == unconverged:
            energy = float("inf")
        lines.append(json.dumps({"species": species, "bonds": bonds, "energy": energy}))
    return lines


class Molecules(Dataset):
    def __init__(self, lines: list[str]) -> None:
        self.records = [json.loads(line) for line in lines]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        return {
            "species": torch.tensor(record["species"]),
            "bonds": torch.tensor(record["bonds"], dtype=torch.float32),
            "energy": torch.tensor(record["energy"], dtype=torch.float32),
        }


class MessagePassing(nn.Module):
    def __init__(self, width: int = 16, rounds: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.message = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.update = nn.GRUCell(width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, species, bonds):
        nodes = self.embed(species)
        for message in self.message:
            incoming = torch.bmm(bonds, torch.relu(message(nodes))) / NUM_ATOMS
            flat = self.update(incoming.flatten(0, 1), nodes.flatten(0, 1))
            nodes = flat.view_as(nodes)
        return self.readout(nodes.sum(1)).squeeze(-1)


def loss_fn(model, batch):
    predicted = model(batch["species"], batch["bonds"])
    return torch.mean((predicted - batch["energy"]) ** 2)


def _build(seed: int, unconverged: int | None) -> Case:
    torch.manual_seed(seed)
    model = MessagePassing()
    loader = DataLoader(
        Molecules(run_chemistry_jobs(128, unconverged)),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Case(model=model, optimizer=optimizer, loader=loader, loss_fn=loss_fn)


def build(seed: int = 0) -> Case:
    return _build(seed, unconverged=41)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, unconverged=None)


TRUTH = Truth(
    step=7, phase="data", op=None, module=None, line=None, cause="bad_input_data", split="held_out"
)
