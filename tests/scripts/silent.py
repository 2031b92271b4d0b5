"""Trains one healthy case of tests/faults/healthy.py, which is the only argument."""

import sys

from torch.utils.data import DataLoader

from tests.faults import healthy

case = healthy.build(getattr(healthy, sys.argv[1]))
for batch in DataLoader(case.batches, batch_size=None):
    healthy.plain_step(case, batch)
