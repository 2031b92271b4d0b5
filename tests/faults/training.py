"""A small training in which one batch goes wrong in a chosen place: what a user might have written.

Whether a batch is bad is written in the batch (`mark`), so that running it again goes wrong again.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

NUM_BATCHES = 9
BAD = 5
PLACES = (
    "input", "label", "activation", "loss", "gradient", "parameter", "buffer", "optimizer_state",
)  # fmt: skip
PRECISIONS = ("fp32", "fp16", "bf16")
VALUES = {"nan": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class Fault:
    """`place` goes to `value` at batch `at`; the healthy twin does the same with ordinary numbers."""

    place: str
    value: str
    precision: str = "fp32"
    is_healthy: bool = False
    at: int = BAD

    def number(self):
        """What goes into the function below: outside its domain, or well inside."""
        return 4.0 if self.is_healthy else {"nan": -1.0, "+inf": 0.0, "-inf": 0.0}[self.value]


def corrupt(value, number):
    """NaN, +Inf or -Inf, made by an operator from a finite number; or something ordinary."""
    if value == "nan":
        return torch.sqrt(number)
    if value == "+inf":
        return torch.reciprocal(number)
    return torch.log(number)


class SpoilGradient(torch.autograd.Function):
    """The identity; its derivative is corrupted."""

    @staticmethod
    def forward(ctx, x, value, number):
        ctx.value, ctx.number = value, number
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + corrupt(ctx.value, grad.new_tensor(ctx.number)), None, None


class Tap(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.register_buffer("level", torch.zeros(()))

    def forward(self, x, mark):
        place = self.fault.place if mark else None
        if place == "activation":
            x = x + corrupt(self.fault.value, x.detach().float().mean() * 0 + self.fault.number())
        if place == "gradient":
            x = SpoilGradient.apply(x, self.fault.value, self.fault.number())
        if place == "buffer":
            with torch.no_grad():
                self.level.copy_(corrupt(self.fault.value, self.level * 0 + self.fault.number()))
        return x


class Net(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.tap = Tap(fault)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)
        self.probe = nn.Parameter(torch.zeros(()))

    def forward(self, x, mark):
        x = self.first(x)
        x = self.tap(self.norm(x), mark)
        return self.last(self.drop(x))


class SpoilingSGD(torch.optim.SGD):
    """Knows the bad batch by the gradient of the probe, which is the mark."""

    def __init__(self, model, fault):
        super().__init__(model.parameters(), lr=0.05, momentum=0.9)
        self.model = model
        self.fault = fault

    @torch.no_grad()
    def step(self, closure=None):
        result = super().step(closure)
        probe, weight = self.model.probe, self.model.last.weight
        if probe.grad is not None and probe.grad > 0.5:
            number = weight.new_tensor(self.fault.number())
            if self.fault.place == "parameter":
                weight[1].copy_(corrupt(self.fault.value, number))
            if self.fault.place == "optimizer_state":
                self.state[weight]["momentum_buffer"][2].copy_(corrupt(self.fault.value, number))
        return result


def batches(fault):
    """(input, label, mark) per batch."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for i in range(NUM_BATCHES):
        x = torch.randn(4, 6, generator=generator)
        y = torch.randn(4, 3, generator=generator)
        bad = 3.0 if fault.is_healthy else VALUES[fault.value]
        if i == fault.at and fault.place == "input":
            x[1, 2] = bad
        if i == fault.at and fault.place == "label":
            y[3, 0] = bad
        found.append((x, y, torch.tensor(float(i == fault.at))))
    return found


def make(fault):
    """Model, optimizer and scaler (fp16 only), all from the same seed."""
    torch.manual_seed(3)
    model = Net(fault)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if fault.precision == "fp16" else None
    return model, SpoilingSGD(model, fault), scaler


def loss_of(model, batch):
    x, y, mark = batch
    fault = model.tap.fault
    with autocast(fault.precision):
        guess = model(x, mark)
        loss = (guess - y).pow(2).mean()
    loss = loss.float() + model.probe * mark
    if mark and fault.place == "loss":
        loss = loss + corrupt(fault.value, loss.detach() * 0 + fault.number())
    return loss


def autocast(precision):
    if precision == "fp32":
        return nullcontext()
    half = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast("cpu", dtype=half)


def loop(batches, model, optimizer, scaler):
    """The loop as people write it."""
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
