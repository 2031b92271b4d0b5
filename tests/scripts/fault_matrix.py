"""Trains once; the arguments say what goes wrong: PLACE VALUE PRECISION AT [healthy]."""

import sys

from torch.utils.data import DataLoader

from tests.faults.training import Fault, batches, loop, make

place, value, precision, at, *rest = sys.argv[1:]
fault = Fault(place, value, precision, is_healthy=bool(rest), at=int(at))
model, optimizer, scaler = make(fault)
loop(DataLoader(batches(fault), batch_size=None), model, optimizer, scaler)
