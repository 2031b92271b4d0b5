"""`python without.py STEPS SCRIPT [ARGS]`: the plain script, but some batches never come.

STEPS are numbers of batches, counted over the DataLoaders that the script trains on (a loader that
is read under `no_grad` is validation and does not count).
"""

import os
import runpy
import sys

import torch
from torch.utils.data import DataLoader

left_out = {int(word) for word in sys.argv[1].split(",")}
original = DataLoader.__iter__
counts = {}


def without(self):
    def batches():
        for batch in iterator:
            if not torch.is_grad_enabled():
                yield batch
                continue
            # Loaders that go side by side (zip) count in step.
            counts[id(self)] = counts.get(id(self), -1) + 1
            if counts[id(self)] not in left_out:
                yield batch

    iterator = original(self)
    return batches()


DataLoader.__iter__ = without
sys.argv = sys.argv[2:]
if sys.argv[0] == "-m":
    del sys.argv[0]
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
