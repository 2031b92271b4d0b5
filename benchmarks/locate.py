"""From failure to the named line: how many normal steps does it take? Bar: 5 on the transformer.

    python -m benchmarks.locate [--rounds N]

A forward fault (a softmax over a fully masked row) and a backward one (sqrt at exactly zero) in the
fourth of six layers. A normal step and the failing one alternate; the ratio is that of the time from
the start of the failing step's investigation to the finished location, without the diagnosis.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import transformer
from stayfinite import Guard


class _Faulty(nn.Module):
    """A layer that goes bad when the batch says so."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.layer = layer
        self.kind = kind
        self.is_on = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        x = self.layer(x, *args, **kwargs)
        if not self.is_on:
            return x
        if self.kind == "forward":
            return x + torch.softmax(torch.full_like(x, float("-inf")), dim=-1)
        return x + (x * 0).sqrt()


def measure(kind: str, rounds: int) -> float:
    w = transformer()
    layers = w.model.layers.layers  # type: ignore[union-attr]
    faulty = layers[3] = _Faulty(layers[3], kind)  # type: ignore[index]
    guard = Guard(w.model, w.optimizer(), settings={"diagnose": False})
    ratios = []
    for r in range(rounds + 1):
        batch = w.batches[r % len(w.batches)]
        start = time.perf_counter()
        guard.step(w.loss_fn, batch)
        normal = time.perf_counter() - start
        faulty.is_on = True
        start = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            outcome = guard.step(w.loss_fn, batch)
        failing = time.perf_counter() - start
        faulty.is_on = False
        assert outcome.incident is not None and outcome.incident.location.file == __file__
        if r:  # the first round warms up
            ratios.append(failing / normal)
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for kind in ("forward", "backward"):
        ratio = measure(kind, args.rounds)
        verdict = "ok" if ratio <= 5 else "over the bar"
        print(
            f"{kind:<9} fault: the whole failing step takes {ratio:.2f} normal steps (bar 5) {verdict}"
        )


if __name__ == "__main__":
    main()
