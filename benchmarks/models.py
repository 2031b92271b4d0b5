"""The three trainings that the overhead is measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Workload:
    """A model, its batches and its loss."""

    name: str
    model: nn.Module
    batches: list[Any]
    loss_fn: Callable[[nn.Module, Any], Tensor]
    fused: bool = True

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=self.fused)


def tiny_mlp() -> Workload:
    """(a) a step of a few hundred microseconds: nothing hides the overhead."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    batches = [(torch.randn(64, 32), torch.randint(10, (64,))) for _ in range(16)]

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(m(batch[0]), batch[1])

    return Workload("a: tiny MLP", model, batches, loss_fn)


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))  # type: ignore[no-any-return]


def transformer(width: int = 256, num_layers: int = 6) -> Workload:
    """(b) six layers of width 256, sequences of 128."""
    torch.manual_seed(0)
    model = _Transformer(width, num_layers, 1000)
    batches = [torch.randint(1000, (8, 129)) for _ in range(8)]

    def loss_fn(m: nn.Module, tokens: Tensor) -> Tensor:
        logits = m(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Workload("b: 6-layer transformer", model, batches, loss_fn)


class _Many(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(8, 8) * 0.1) for _ in range(count)]
        )

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for w in self.weights:
            total = total + x @ w
        return total


def many_tensors() -> Workload:
    """(c) 5,000 small parameter tensors: the cost per tensor shows."""
    torch.manual_seed(0)
    model = _Many(5000)
    batches = [torch.randn(16, 8) for _ in range(4)]

    def loss_fn(m: nn.Module, x: Tensor) -> Tensor:
        return m(x).pow(2).mean()

    return Workload("c: 5,000 small tensors", model, batches, loss_fn)


WORKLOADS = {"a": tiny_mlp, "b": transformer, "c": many_tensors}
