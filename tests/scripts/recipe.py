"""Trains once: OPTIMIZER PRECISION DEFECT [without]."""

import sys

from torch.utils.data import DataLoader

from tests.faults import recipe

kind, precision, defect, *rest = sys.argv[1:]
data = DataLoader(recipe.batches(defect, bool(rest)), batch_size=None)
model, optimizer, scheduler, scaler = recipe.make(kind, precision, defect)
model.precision = precision
recipe.loop(data, model, optimizer, scheduler, scaler)
