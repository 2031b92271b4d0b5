"""A set encoder over ragged point sets: the model pads them itself, into `new_empty`.

The valid points are copied in, the rest of the padded tensor is whatever the allocator had, and the
mean pooling takes it for points. It breaks at the first batch whose sets are not all of one size.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


def pad_points(sets: list[torch.Tensor], fill_value: float | None) -> torch.Tensor:
    longest = max(len(points) for points in sets)
    if fill_value is None:
        padded = sets[0].new_empty(len(sets), longest, 3)  # <- born here
    else:
        padded = sets[0].new_full((len(sets), longest, 3), fill_value)
    for row, points in zip(padded, sets):
        row[: len(points)] = points
    return padded


class PointEncoder(nn.Module):
    def __init__(self, fill_value: float | None) -> None:
        super().__init__()
        self.fill_value = fill_value
        self.lift = nn.Linear(3, 16)
        self.mix = nn.Linear(16, 16)

    def forward(self, sets):
        points = pad_points(sets, self.fill_value)
        features = torch.relu(self.mix(torch.relu(self.lift(points))))
        return features.mean(dim=1)


class ShapeClassifier(nn.Module):
    def __init__(self, fill_value: float | None) -> None:
        super().__init__()
        self.encoder = PointEncoder(fill_value)
        self.head = nn.Linear(16, 3)

    def forward(self, sets):
        return self.head(self.encoder(sets))


def scan_objects(num_batches: int) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    batches = []
    for index in range(num_batches):
        labels = torch.randint(0, 3, (6,))
        num_points = [12] * 6 if index < 4 else [9 + (index + i) % 4 for i in range(6)]
        sets = [torch.randn(n, 3) * (1 + label) for n, label in zip(num_points, labels)]
        batches.append((sets, labels))
    return batches


def loss_fn(model, batch):
    sets, labels = batch
    return nn.functional.cross_entropy(model(sets), labels, label_smoothing=0.1)


def _build(seed: int, fill_value: float | None) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model = ShapeClassifier(fill_value)
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        loader=scan_objects(14),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, fill_value=None)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, fill_value=0.0)


TRUTH = Truth(
    step=4,
    phase="forward",
    op="aten.new_empty",
    module="encoder",
    line="<marker>",
    cause="uninitialized_memory",
    split="held_out",
)
