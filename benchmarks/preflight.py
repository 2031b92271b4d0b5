"""How long `stayfinite check` takes on a six-layer transformer: at most a minute of one core is the limit.

python -m benchmarks.preflight
"""

from __future__ import annotations

import time

import torch

from benchmarks.models import transformer
from stayfinite.preflight import check

LIMIT_SECONDS = 60


def main() -> None:
    torch.set_num_threads(1)

    def build() -> tuple[object, ...]:
        work = transformer()
        return work.model, work.loss_fn, work.batches, work.optimizer()

    start = time.process_time()
    report = check(build)
    seconds = time.process_time() - start
    print(
        f"{len(report.findings)} checks in {seconds:.1f} s of processor time (limit {LIMIT_SECONDS} s)"
    )


if __name__ == "__main__":
    main()
