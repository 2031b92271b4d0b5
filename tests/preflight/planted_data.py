"""Defects in data: what each check must find, and in which sample or feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.preflight.healthy import Target, classify, clusters, loader
from tests.preflight.planted_core import of_build, plant
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


def in_data(name: str, check: str, where: str, status: str, build: Callable[[], Any]) -> None:
    plant(name, "data", of_build("data", build), check, where, status)


def classifier(change: Callable[[Tensor, Tensor], Any] | None = None, **more: Any) -> Any:
    """A classifier whose data `change` corrupts in place."""

    def build() -> Target:
        torch.manual_seed(0)
        num = more.get("num", 128)
        x, y = clusters(num)
        corrupted = change(x, y) if change is not None else None
        data = corrupted if isinstance(corrupted, Dataset) else TensorDataset(x, y)
        model = more.get("model", lambda: nn.Linear(16, 4))()
        loads = DataLoader(data, batch_size=16, shuffle=more.get("shuffle", True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return model, more.get("loss_fn", classify), loads, optimizer

    return build


def put(sample: int, feature: int, value: float) -> Callable[[Tensor, Tensor], None]:
    def change(x: Tensor, y: Tensor) -> None:
        x[sample, feature] = value

    return change


def label(sample: int, value: int) -> Callable[[Tensor, Tensor], None]:
    def change(x: Tensor, y: Tensor) -> None:
        y[sample] = value

    return change


class Samples(Dataset):
    """One sample is corrupted when it is asked for."""

    def __init__(self, x: Tensor, y: Tensor, at: int, corrupt: Callable[[Tensor], Tensor]) -> None:
        self.x, self.y, self.at, self.corrupt = x, y, at, corrupt

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        x = self.corrupt(self.x[i]) if i == self.at else self.x[i]
        return {"x": x, "label": self.y[i]}


def fails(x: Tensor) -> Tensor:
    raise OSError("truncated image")


def by_key(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["label"])


def images(x: Tensor, y: Tensor) -> Dataset:
    return TensorDataset(torch.randint(256, (128, 3, 4, 4)).float(), y)


def words(high: int) -> Callable[[], Target]:
    def build() -> Target:
        torch.manual_seed(0)
        x, y = torch.randint(50, (128, 6)), torch.arange(128) % 2
        x[101, 3] = high
        model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 2))
        return model, classify, loader(x, y), torch.optim.SGD(model.parameters(), lr=0.05)

    return build


def binary() -> Target:
    torch.manual_seed(0)
    x, _ = clusters()
    y = (torch.arange(128) % 2).float()
    y[77] = 2.0
    model = nn.Linear(16, 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]).squeeze(1), batch[1])

    return model, loss, loader(x, y), torch.optim.SGD(model.parameters(), lr=0.05)


def one_in_a_hundred(x: Tensor, y: Tensor) -> None:
    y.zero_()
    y[::100] = 1


def no_class_2(x: Tensor, y: Tensor) -> None:
    y[y == 2] = 1


def sorted_labels(x: Tensor, y: Tensor) -> None:
    y.copy_(y.sort().values)


def raw_prices(x: Tensor, y: Tensor) -> None:
    x.mul_(1e7)


def one_class(x: Tensor, y: Tensor) -> None:
    y.fill_(3)


def constant(x: Tensor, y: Tensor) -> None:
    x[:, 5] = 3.0


def copies(x: Tensor, y: Tensor) -> None:
    x[64:] = x[:64]


def in_half_data(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return classify(model, batch)


in_data(
    "one NaN",
    "finite",
    "feature 3, sample 117",
    "fail",
    classifier(put(117, 3, float("nan")), num=512),
)
in_data("one Inf", "finite", "feature 0, sample 4", "fail", classifier(put(4, 0, float("inf"))))
in_data("a NaN made by the dataset", "finite", "sample['x'], feature 0, sample 31", "fail",
        classifier(lambda x, y: Samples(x, y, 31, lambda v: v / 0 * 0), loss_fn=by_key, num=400))  # fmt: skip
in_data("1e30", "range", "feature 7, sample 90", "fail", classifier(put(90, 7, 1e30)))
in_data("beyond float16", "range", "feature 7, sample 90", "fail",
        classifier(put(90, 7, 1e5), loss_fn=in_half_data))  # fmt: skip
in_data("raw prices", "range", "sample[0]", "warn", classifier(raw_prices))
in_data("raw pixels", "range", "sample[0]", "warn", classifier(
    images, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
))  # fmt: skip
in_data(
    "a code for missing",
    "outliers",
    "feature 2, sample 60",
    "warn",
    classifier(put(60, 2, -9999.0)),
)
in_data("constant feature", "constant", "feature 5", "warn", classifier(constant))
in_data("label 4 of 4", "labels", "sample 99", "fail", classifier(label(99, 4)))
in_data("label -3", "labels", "sample 55", "fail", classifier(label(55, -3)))
in_data("target of 2", "labels", "sample 77", "fail", binary)
in_data("one in a hundred", "balance", "class 0", "warn", classifier(one_in_a_hundred, num=1024))
in_data("one class", "balance", "sample[1]", "warn", classifier(one_class))
in_data("a class that never comes", "balance", "class 2", "warn", classifier(no_class_2, num=512))
in_data("word 50 of 50", "ids", "sample 101", "fail", words(50))
in_data("ragged sample", "shapes", "sample['x'], sample 19", "fail",
        classifier(lambda x, y: Samples(x, y, 19, lambda v: v[:12]), loss_fn=by_key))  # fmt: skip
in_data("empty sample", "empty", "sample['x'], sample 19", "warn",
        classifier(lambda x, y: Samples(x, y, 19, lambda v: v[:0]), loss_fn=by_key))  # fmt: skip
in_data("unreadable sample", "readable", "sample 13", "fail",
        classifier(lambda x, y: Samples(x, y, 13, fails), loss_fn=by_key))  # fmt: skip
in_data("last batch of one", "last-batch", "1", "fail", classifier(
    num=129, model=lambda: nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
))  # fmt: skip
in_data(
    "sorted and not shuffled",
    "order",
    "sample[1]",
    "warn",
    classifier(sorted_labels, shuffle=False),
)
in_data("copies", "duplicates", "sample 64 is sample 0", "warn", classifier(copies))
in_data("float64 samples", "dtype", "sample[0]", "warn",
        classifier(lambda x, y: TensorDataset(x.double(), y)))  # fmt: skip
