"""A training with everything that has a memory: BatchNorm, Dropout, moments, schedule, scaler, RNGs."""

import random

import numpy as np
import torch
from torch import nn

NUM_BATCHES = 14
BAD = 8
DEFECTS = ("loss", "gradient", "input", "optimizer_state")


class Net(nn.Module):
    def __init__(self, defect):
        super().__init__()
        self.defect = defect
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)
        self.probe = nn.Parameter(torch.zeros(()))

    def forward(self, x, is_bad):
        x = torch.relu(self.norm(self.first(x)))
        if is_bad and self.defect == "gradient":
            # sqrt'(0) is infinite and 0 * inf is NaN, while the value is 0
            x = x + (x * 0).sqrt()
        return self.last(self.drop(x))


def batches(defect, is_left_out):
    """(x, y, is_bad); without the bad batch where it is to be left out."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for i in range(NUM_BATCHES):
        x = torch.randn(8, 6, generator=generator)
        y = torch.randint(3, (8,), generator=generator)
        if i == BAD and defect == "input":
            x[2, 3] = float("inf")
        found.append((x, y, i == BAD))
    return [b for b in found if not (b[2] and is_left_out)]


class Corrupting(torch.optim.AdamW):
    """Writes a NaN into a moment on the bad batch, known by the gradient of the probe."""

    @torch.no_grad()
    def step(self, closure=None):
        result = super().step(closure)
        *_, weight, _, probe = (p for g in self.param_groups for p in g["params"])
        if probe.grad is not None and probe.grad > 0.5:
            self.state[weight]["exp_avg_sq"][0] = float("nan")
        return result


def optimizer_of(kind, model, defect):
    if defect == "optimizer_state":
        params = [*model.first.parameters(), *model.norm.parameters(), *model.last.parameters()]
        return Corrupting([*params, model.probe], lr=1e-2)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def make(kind, precision, defect, total_steps=NUM_BATCHES + 2):
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    model = Net(defect)
    optimizer = optimizer_of(kind, model, defect)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-2, total_steps=total_steps, cycle_momentum=kind == "sgd"
    )
    # It grows every third step, so that a step too many shows.
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return model, optimizer, scheduler, scaler if precision == "fp16" else None


def loss_of(model, batch):
    x, y, is_bad = batch
    x = x + 0.01 * random.random() + 0.01 * np.random.rand() + 0.01 * torch.rand(())
    with torch.autocast("cpu", dtype=torch.float16, enabled=model.precision == "fp16"):
        guess = model(x, is_bad)
    loss = nn.functional.cross_entropy(guess.float(), y) + model.probe * float(is_bad)
    if is_bad and model.defect == "loss":
        loss = loss + torch.log(loss.detach() * 0 - 1)
    return loss


def loop(batches, model, optimizer, scheduler, scaler):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()


def everything(model, optimizer, scheduler, scaler):
    """All that the training remembers, as a flat dict of comparable values."""
    found = {f"model {k}": v for k, v in model.state_dict().items()}
    for p, (name, _) in zip(model.parameters(), model.named_parameters()):
        for key, value in optimizer.state.get(p, {}).items():
            found[f"moment {name} {key}"] = value
    for i, group in enumerate(optimizer.param_groups):
        found |= {f"group {i} {k}": v for k, v in group.items() if k != "params"}
    found |= {f"scheduler {k}": v for k, v in scheduler.state_dict().items()}
    if scaler is not None:
        found |= {f"scaler {k}": v for k, v in scaler.state_dict().items()}
    found["rng torch"] = torch.get_rng_state()
    found["rng python"] = random.getstate()
    found["rng numpy"] = [np.asarray(part).tolist() for part in np.random.get_state()]
    return found
