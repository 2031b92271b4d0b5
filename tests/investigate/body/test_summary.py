"""Functions of the user's are called again without what they do beside computing."""

from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

CALLS = []
NUM_CALLS = 0


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


def helper(model, x, y, log):
    global NUM_CALLS
    NUM_CALLS += 1
    CALLS.append(NUM_CALLS)
    log["n"] += 1
    print("called", NUM_CALLS)
    out = model(x)
    return F.mse_loss(out, y), out


def outer_helper(model, batch):
    x, y = batch
    return helper(model, x, y, Counter())[0] * 2


class Counting(nn.Module):
    calls = 0

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.num = 0
        self.seen = []

    def forward(self, x):
        global NUM_CALLS
        NUM_CALLS += 1
        self.num += 1
        self.seen.append(x.mean().item())
        print("forward", self.num)
        return self.inner(x)


def loop_closure_computes_the_loss(model, optimizer, loader):
    calls = 0

    def compute(x, y):
        nonlocal calls
        calls += 1
        return F.mse_loss(model(x), y)

    for x, y in loader:
        loss = compute(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_lambda_computes_the_loss(model, optimizer, loader):
    compute, double = lambda x, y: F.mse_loss(model(x), y), lambda t: 2 * t
    for x, y in loader:
        loss = double(compute(x, y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_helper_that_counts(model, optimizer, loader):
    log = Counter()
    for x, y in loader:
        loss, _ = helper(model, x, y, log)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_helper_of_a_helper(model, optimizer, loader):
    for batch in loader:
        loss = outer_helper(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_helper_that_goes_backward(model, optimizer, loader):
    def backward(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        CALLS.append(1)
        return loss.item()

    for x, y in loader:
        optimizer.zero_grad()
        backward(x, y)
        optimizer.step()


def loop_module_that_counts(model, optimizer, loader):
    wrapped = Counting(model)
    for x, y in loader:
        loss = F.mse_loss(wrapped(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_hooks_that_record(model, optimizer, loader):
    seen = []
    handle = model[0].register_forward_hook(lambda m, a, out: seen.append(out.mean().item()))
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    handle.remove()


def loop_decorated_helper(model, optimizer, loader):
    @torch.no_grad()
    def targets(y):
        CALLS.append("targets")
        return y * 2

    for x, y in loader:
        loss = F.mse_loss(model(x), targets(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class KeepsItsOutput(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.result = torch.zeros(1)

    def forward(self, x):
        self.result = self.inner(x)
        return self.result

    def calculate_loss(self, x, y):
        return F.mse_loss(self.forward(x), y)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader):
        for x, y in loader:
            loss = self.model.calculate_loss(x, y)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()


def loop_model_that_keeps_its_output_and_is_read_later(model, optimizer, loader):
    Trainer(KeepsItsOutput(model), optimizer).fit(loader)


class Growing(KeepsItsOutput):
    def __init__(self, inner):
        super().__init__(inner)
        self.scale = 1.0

    def calculate_loss(self, x, y):
        self.scale = self.scale * 0.9
        return super().calculate_loss(x, y)


def loop_value_that_grows_is_not_replaced(
    model,
    optimizer,
    loader,
    *,
    can_bind=False,
    is_exact=False,
    steps=0,
    taken=("loss", "model.scale"),
):
    model = Growing(model)
    for x, y in loader:
        loss = model.calculate_loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 + model.scale)
        optimizer.step()
