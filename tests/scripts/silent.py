"""Trains one healthy case of tests/faults/test_silent.py, which is the only argument."""

import sys

from torch.utils.data import DataLoader

from tests.faults import test_silent

case = test_silent.build(getattr(test_silent, sys.argv[1]))
for batch in DataLoader(case.batches, batch_size=None):
    test_silent.plain_step(case, batch)
