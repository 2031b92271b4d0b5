"""A GRU forecasts temperature from hourly station readings that were exported as CSV.

The logger wrote `nan` for an hour in which the humidity probe was unplugged. The parser turns the
text into a float without complaint, the windows are cut, and the batch that holds that hour kills
the run in the middle of the epoch.
"""

import csv
import io
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

WINDOW = 12
UNPLUGGED_HOUR = 150


def export_csv(num_hours: int, with_gap: bool) -> str:
    rows = ["hour,temperature,humidity,pressure"]
    for hour in range(num_hours):
        angle = 2 * math.pi * hour / 24
        humidity = f"{60 - 15 * math.sin(angle):.2f}"
        if with_gap and hour == UNPLUGGED_HOUR:
            humidity = "nan"
        rows.append(
            f"{hour},{12 + 6 * math.sin(angle):.2f},{humidity},{1013 + math.cos(angle):.2f}"
        )
    return "\n".join(rows)


def read_station(text: str) -> torch.Tensor:
    reader = csv.DictReader(io.StringIO(text))
    columns = ("temperature", "humidity", "pressure")
    readings = torch.tensor([[float(row[c]) for c in columns] for row in reader])
    typical = torch.tensor([12.0, 60.0, 1013.0])
    spread = torch.tensor([6.0, 15.0, 1.0])
    return (readings - typical) / spread


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, window):
        _, last = self.rnn(window)
        return self.head(last[-1]).squeeze(-1)


def loss_fn(model, batch):
    window, target = batch
    return nn.functional.smooth_l1_loss(model(window), target)


def _build(seed: int, with_gap: bool) -> Case:
    torch.manual_seed(seed)
    readings = read_station(export_csv(240, with_gap))
    starts = range(len(readings) - WINDOW)
    windows = torch.stack([readings[s : s + WINDOW] for s in starts])
    targets = torch.stack([readings[s + WINDOW, 0] for s in starts])
    model = Forecaster()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        loader=DataLoader(TensorDataset(windows, targets), batch_size=12),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, with_gap=True)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, with_gap=False)


TRUTH = Truth(
    step=11, phase="data", op=None, module=None, line=None, cause="bad_input_data", split="dev"
)
