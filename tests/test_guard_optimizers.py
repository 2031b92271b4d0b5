"""Optimizers as people have them: hand-written ones, several at once, copies in another precision."""

import torch
from tests.guards import BAD, GOOD, QUICK, linear, squares
from torch.optim import Optimizer

from stayfinite import Guard
from stayfinite.conductor import slots


class SignDescent(Optimizer):
    """Written by hand, with a counter beside its state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


def test_a_hand_written_optimizer_is_the_only_one_there_is():
    slots._torch_own.cache_clear()  # as in a process that has not asked yet
    model = linear()
    optimizer = SignDescent(model.parameters(), lr=0.02)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard([GOOD, BAD, GOOD]):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
    assert guard.state.optimizers == [optimizer]
    assert [i.event.lr for i in guard.incidents] == [(0.02,)]
    assert optimizer.num_steps == 2
