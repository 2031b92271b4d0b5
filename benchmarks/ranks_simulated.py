"""What would one more small collective a step cost on 64 to 4,096 ranks? A simulation with stated assumptions.

    python -m benchmarks.ranks_simulated [--steps 400] [--seed 0]

A step of each rank is two stretches of its own work: what lies between the training's gradient exchange and our
all-reduce (a few kernels and the look at the loss), and all the rest. A rank's work varies by itself from step to step
(a normal spread of 1 %), and now and then one is held up (probability 1e-5 a step and rank, 50 ms). Without us the ranks
meet once a step, at the gradient exchange; with us twice. So small an all-reduce takes 2 log2(N) hops of the
latency given. Nothing here was measured on such a fleet.
"""

from __future__ import annotations

import argparse
import math

import torch

STEP_MS = 250.0
BETWEEN_MS = 0.3
SPREAD = 0.01
HOLD_PROBABILITY, HOLD_MS = 1e-5, 50.0
LATENCIES_US = {"NVLink and InfiniBand, 5 us a hop": 5.0, "Ethernet, 30 us a hop": 30.0}
RANKS = (64, 256, 1024, 4096)


def work(ms: float, num_ranks: int, num_steps: int, generator: torch.Generator) -> torch.Tensor:
    """What each rank needs for a stretch of its own work."""
    spread = torch.randn(num_steps, num_ranks, generator=generator) * SPREAD * ms
    return (ms + spread).clamp(min=0.0)


def held_up(num_ranks: int, num_steps: int, generator: torch.Generator) -> torch.Tensor:
    return HOLD_MS * (torch.rand(num_steps, num_ranks, generator=generator) < HOLD_PROBABILITY)


def simulate(num_ranks: int, hop_us: float, num_steps: int, seed: int) -> tuple[float, float]:
    """Milliseconds of a step: plain, and with a second meeting."""
    generator = torch.Generator().manual_seed(seed)
    between = work(BETWEEN_MS, num_ranks, num_steps, generator)
    rest = work(STEP_MS - BETWEEN_MS, num_ranks, num_steps, generator)
    rest = rest + held_up(num_ranks, num_steps, generator)
    hops_ms = 2 * math.ceil(math.log2(num_ranks)) * hop_us / 1000
    plain = (between + rest).amax(1).mean()
    watched = between.amax(1).mean() + hops_ms + rest.amax(1).mean()
    return float(plain), float(watched)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'':36}{'ranks':>6}{'plain':>11}{'watched':>11}{'more':>10}{'of a step':>11}")
    for name, hop_us in LATENCIES_US.items():
        for num_ranks in RANKS:
            plain, watched = simulate(num_ranks, hop_us, options.steps, options.seed)
            more = watched - plain
            print(
                f"{name:36}{num_ranks:6}{plain:8.2f} ms{watched:8.2f} ms{1000 * more:7.0f} us"
                f"{more / plain:11.3%}"
            )


if __name__ == "__main__":
    main()
