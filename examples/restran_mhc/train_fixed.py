"""The same training, with the same settings, and a routing that cannot overflow.

Sinkhorn-Knopp runs on logarithms, so no exponential is taken of what the gates have grown to, and
the norm has an epsilon that its dtype can tell from zero. A resume follows the config, not the
schedule in the file.
"""

from __future__ import annotations

from pathlib import Path

import torch
from model import HyperConnection
from torch import nn
from train import Run, main

from stayfinite.numerics import RMSNorm, log_sinkhorn


class StableHyperConnection(HyperConnection):
    def __init__(self, block: nn.Module, channels: int, n: int, tau: float) -> None:
        super().__init__(block, channels, n, tau)
        self.norm = RMSNorm(n * channels)

    def project(self, h_tilde: torch.Tensor) -> torch.Tensor:
        return log_sinkhorn(h_tilde / self.tau).exp()


def resume(run: Run, path: Path) -> None:
    """Weights and moments from the file; the schedule as the config has it now, for what is left."""
    state = torch.load(path)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scaler.load_state_dict(state["scaler"])
    run.epoch = state["epoch"]
    run.schedule()


if __name__ == "__main__":
    main(StableHyperConnection, resume)
