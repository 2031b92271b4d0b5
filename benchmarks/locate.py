"""From failure to the named line: how many normal steps does it take? Bar: 5 on the transformer, and
1.5 for the same failure once more, which is counted and not looked into again.

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
from stayfinite import Guard, Policy
from stayfinite.runtime.known import KnownIncidents


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


def measure(kind: str, rounds: int) -> tuple[float, float]:
    """(a new failure, the same once more), in normal steps."""
    w = transformer()
    layers = w.model.layers.layers  # type: ignore[union-attr]
    faulty = layers[3] = _Faulty(layers[3], kind)  # type: ignore[index]
    settings = {"diagnose": False}
    # Skipped on purpose, again and again: that is what is measured.
    policy = Policy.parse("skip", max_consecutive_skips=10**6)
    guard = Guard(w.model, w.optimizer(), policy=policy, settings=settings)

    def seconds(batch: Any) -> float:
        start = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            guard.step(w.loss_fn, batch)
        return time.perf_counter() - start

    new, again = [], []
    for r in range(rounds + 1):
        batch = w.batches[r % len(w.batches)]
        normal = seconds(batch)
        faulty.is_on = True
        guard.engine.known = KnownIncidents()
        # From one line: the same failure from another one is another incident.
        failing, repeated = [seconds(batch) for _ in range(2)]
        faulty.is_on = False
        assert [i.location.file for i in guard.incidents[-2:]] == [__file__] * 2
        if r:  # the first round warms up
            new.append(failing / normal)
            again.append(repeated / normal)
    return statistics.median(new), statistics.median(again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for kind in ("forward", "backward"):
        new, again = measure(kind, args.rounds)
        for what, ratio, bar in (("a new one", new, 5.0), ("the same again", again, 1.5)):
            verdict = "ok" if ratio <= bar else "over the bar"
            print(
                f"{kind:<9} fault, {what:<15} the whole failing step takes {ratio:.2f} normal steps "
                f"(bar {bar:g}) {verdict}"
            )


if __name__ == "__main__":
    main()
