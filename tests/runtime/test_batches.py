"""Names of the tensors in whatever a batch is made of."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from stayfinite.runtime.batches import batch_bytes, named_tensors

T = torch.zeros(2)
Pair = namedtuple("Pair", "left right")


@dataclass
class Sample:
    x: torch.Tensor
    name: str
    rest: list


class Graph:
    """As graph libraries have it: attributes, no dataclass."""

    def __init__(self):
        self.nodes = T
        self.parts = [T]
        self.secret = "no tensor"


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (T, ["batch"]),
        ([T, T], ["batch[0]", "batch[1]"]),
        ((T, 3, None, "a"), ["batch[0]"]),
        ({"x": T, 3: T}, ["batch['x']", "batch[3]"]),
        ({"a": {"b": [T]}}, ["batch['a']['b'][0]"]),
        (Pair(T, [T]), ["batch.left", "batch.right[0]"]),
        (Sample(T, "n", [T]), ["batch.x", "batch.rest[0]"]),
        (Graph(), ["batch.nodes", "batch.parts[0]"]),
        (SimpleNamespace(x=T), ["batch.x"]),
        (None, []),
        ("text", []),
        (3.0, []),
        (Sample, []),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, list) else str(v)[:40],
)
def test_names(batch, names):
    assert [n for n, _ in named_tensors(batch)] == names


def test_names_lead_to_the_tensor():
    batch = {"a": [torch.zeros(1), Sample(torch.ones(1), "n", [])]}
    for name, tensor in named_tensors(batch):
        assert eval(name) is tensor


def test_a_batch_that_holds_itself_ends():
    batch = [T]
    batch.append(batch)
    assert next(iter(named_tensors(batch)))[0] == "batch[0]"
    assert len(list(named_tensors(batch))) < 20


def test_bytes():
    assert batch_bytes({"x": torch.zeros(3), "y": [torch.zeros(2, dtype=torch.int64)]}) == 28
    assert batch_bytes("nothing") == 0
