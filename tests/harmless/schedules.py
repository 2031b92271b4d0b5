"""Trainings with every scheduler and optimizer of torch, in three forms, with and without bad batches."""

import contextlib
import io
import itertools
import pathlib
import sys
import tempfile
import warnings

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

from stayfinite import Guard, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.recover.policy import Policy
from stayfinite.runtime.script.run_script import ScriptRun

NUM_BATCHES = 8
PLACES = {"first": {0}, "middle": {3}, "last": {NUM_BATCHES - 1}, "consecutive": {3, 4}}
FORMS = ("step", "loader", "run")
SCHEDULERS = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda i: 0.9**i),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda i: 0.9),
    "StepLR": lambda o: schedules.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 3, 5], 0.5),
    "ConstantLR": lambda o: schedules.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: schedules.LinearLR(o, 0.2, total_iters=5),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, 6, 2.0),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5, 1e-4),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2, 2),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 1e-3, 1e-2, 2, cycle_momentum=False),
    "OneCycleLR": lambda o: schedules.OneCycleLR(
        o, 0.02, total_steps=NUM_BATCHES + 1, cycle_momentum=False
    ),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5, 3), schedules.ExponentialLR(o, 0.9)], o
    ),
    "SWALR": lambda o: SWALR(o, swa_lr=1e-3, anneal_epochs=5),
}
OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


class Training:
    """Dropout and batch norm, so that random numbers and buffers count, too."""

    def __init__(self, optimizer, scheduler):
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 4, bias=False)
        )
        # Muon takes matrices only.
        moved = [p for p in self.model.parameters() if p.dim() == 2 or optimizer != "Muon"]
        self.optimizer = OPTIMIZERS[optimizer](moved, lr=0.01)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.rates = []

    def loss(self, model, batch):
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        return (model(batch) - 1).pow(2).mean()

    def after(self):
        if isinstance(self.scheduler, schedules.ReduceLROnPlateau):
            self.scheduler.step(1.0)
        else:
            self.scheduler.step()

    def loop(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            self.loss(self.model, batch).backward()
            self.optimizer.step()
            self.after()

    def by_steps(self, guard, batches):
        for batch in batches:
            applied = guard.step(self.loss, batch).applied
            if applied and isinstance(self.scheduler, schedules.ReduceLROnPlateau):
                self.after()

    def left(self):
        """All that it leaves behind; tensors as bytes."""
        states = self.model.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict()
        return plain([*states, torch.get_rng_state()])


def plain(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.numpy().tobytes()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


def batches(bad):
    made = torch.Generator().manual_seed(1)
    found = [torch.randn(5, 3, generator=made) for _ in range(NUM_BATCHES)]
    for i in bad:
        found[i][0, 0] = float("nan")
    return found


def as_loader(form, data):
    return torch.utils.data.DataLoader(data, batch_size=None) if form == "run" else data


def protected(form, optimizer, scheduler, bad, folder):
    """(what the training left, its rates, the steps that were left out)."""
    settings = Settings(diagnose=False, replay="off")
    data = as_loader(form, batches(bad))
    with contextlib.redirect_stderr(io.StringIO()):
        if form == "run":
            run = ScriptRun(settings, Policy(), folder, investigate)
            found = run.run_call(lambda: _looped(optimizer, scheduler, data))
            return *found, [i.event.step for i in run.engine.incidents]
        training = Training(optimizer, scheduler)
        with Guard(
            training.model, training.optimizer, training.scheduler, settings=settings
        ) as guard:
            if form == "loader":
                training.loop(guard(data))
            else:
                training.by_steps(guard, data)
    return training.left(), training.rates, [i.event.step for i in guard.incidents]


def _looped(optimizer, scheduler, data):
    training = Training(optimizer, scheduler)
    training.loop(data)
    return training.left(), training.rates


def without(form, optimizer, scheduler, bad):
    """The same of a plain run that never saw the bad batches."""
    kept = [b for i, b in enumerate(batches(())) if i not in bad]
    return _looped(optimizer, scheduler, as_loader(form, kept))


def differences(optimizer, scheduler, folder, forms=FORMS, places=tuple(PLACES)):
    """Forms and places for which the two are not the same, bit for bit."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler that moves before its optimizer says so
        for form, place in itertools.product(forms, places):
            bad = PLACES[place]
            state, rates, steps = protected(
                form, optimizer, scheduler, bad, folder / f"{form}-{place}"
            )
            wanted, wanted_rates = without(form, optimizer, scheduler, bad)
            if steps != sorted(bad):
                found.append(f"{form}, {place}: noticed at {steps}")
            if [r for i, r in enumerate(rates) if i not in bad] != wanted_rates:
                found.append(f"{form}, {place}: other rates")
            if state != wanted:
                found.append(f"{form}, {place}: another state")
    return found


def main():
    """All of them with each other: minutes of work."""
    num_wrong = 0
    for optimizer, scheduler in itertools.product(OPTIMIZERS, SCHEDULERS):
        with tempfile.TemporaryDirectory() as folder:
            found = differences(optimizer, scheduler, pathlib.Path(folder))
        num_wrong += len(found)
        print(f"{optimizer} {scheduler}: {'; '.join(found) or 'the same'}", flush=True)
    count = len(OPTIMIZERS) * len(SCHEDULERS) * len(FORMS) * len(PLACES)
    print(f"{count} trainings, {num_wrong} differences")
    return num_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
