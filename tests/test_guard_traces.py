"""What a guard leaves behind: its files, and nothing else."""

import gc
import json
import math
import os
import re
import stat

import pytest
import torch
from tests.guards import BAD, GOOD, QUICK, guarded, linear, sgd, squares
from torch import nn

from stayfinite import (
    Guard,
    Incident,
)
from stayfinite.investigate import course as investigation
from stayfinite.locate.trace import OpTrace

# -- where it is saved --------------------------------------------------------------------------


def test_the_incident_is_saved_and_reads_back(tmp_path, capfd):
    guard = guarded(run_dir=tmp_path / "run")
    guard.step(squares, BAD)
    (incident,) = guard.incidents
    folder = tmp_path / "run" / "incidents" / incident.id
    names = {p.name for p in folder.iterdir()}
    assert names == {"incident.json", "incident.txt", "sources.json"}
    assert Incident.from_json((folder / "incident.json").read_text()).id == incident.id
    json.loads((folder / "incident.json").read_text(), parse_constant=pytest.fail)
    assert capfd.readouterr().err == (
        f"stayfinite: step 0: the loss is nan, from batch batch at "
        f"{os.path.relpath(squares.__code__.co_filename)}:{incident.location.line}; "
        f"skipped (saved in {folder})\n"
    )


def test_without_a_run_dir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guarded().step(squares, BAD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("why", ["file in the way", "read-only"])
def test_a_run_dir_that_cannot_be_written_does_not_stop_the_training(why, tmp_path, capfd):
    if why == "file in the way":
        (tmp_path / "run").write_text("")
        folder = tmp_path / "run"
    else:
        if os.geteuid() == 0:
            folder = "/proc/stayfinite"  # root may write anywhere else
        else:
            tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
            folder = tmp_path / "run"
    guard = guarded(run_dir=folder)
    applied = [guard.step(squares, x).applied for x in (GOOD, BAD, GOOD, BAD, GOOD)]
    assert applied == [True, False, True, False, True]
    assert [i.path for i in guard.incidents] == [None, None]
    warnings = [t for t in capfd.readouterr().err.splitlines() if "cannot write" in t]
    assert len(warnings) == 1
    assert re.fullmatch(
        rf"stayfinite: cannot write to {re.escape(str(folder))} \(.+\); "
        "the training goes on, incidents are not saved",
        warnings[0],
    )


# -- leaving no trace ---------------------------------------------------------------------------


def test_close_takes_every_hook_out():
    model = linear()
    optimizer = sgd(model)
    names = (
        (torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.nn.utils, "clip_grad_norm_"),
        (torch.optim.Optimizer, "__init__"), (torch.optim.SGD, "step"), (torch, "isnan"),
        (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "scale"), (torch, "save"),
        (torch.optim.lr_scheduler.LRScheduler, "step"), (torch.Tensor, "isfinite"),
        (torch.Tensor, "item"), (nn.Module, "__call__"),
    )  # fmt: skip
    gc.collect()  # guards that other tests have dropped
    before = [home.__dict__.get(name) for home, name in names]
    guard = Guard(model, optimizer, settings=QUICK)
    for x in guard([GOOD, BAD, GOOD]):
        optimizer.zero_grad()
        squares(model, x).backward()
        optimizer.step()
    guard.close()
    assert [home.__dict__.get(name) for home, name in names] == before
    assert "step" not in vars(optimizer)
    assert not optimizer._optimizer_step_post_hooks
    assert not model._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.is_anomaly_enabled()


def test_closing_twice_is_harmless():
    guard = guarded()
    guard.step(squares, GOOD)
    guard.close()
    guard.close()


def test_leaving_the_loop_early_is_harmless():
    model = linear()
    optimizer = sgd(model)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for i, x in enumerate(guard([GOOD] * 5)):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
            if i == 2:
                break
    assert guard.incidents == []


def test_leaving_the_loop_right_after_the_bad_step_still_tells_and_leaves_clean_state():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = sgd(model)
    bad = torch.tensor([[1.0, 2.0], [3.0, float("inf")]])
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard([torch.randn(2, 2), bad, GOOD]):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
            if x is bad:
                break
    assert [i.event.step for i in guard.incidents] == [1]
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())


def test_two_guards_after_one_another_do_not_mix():
    for _ in range(2):
        model = linear()
        optimizer = sgd(model)
        with Guard(model, optimizer, settings=QUICK) as guard:
            for x in guard([GOOD, BAD]):
                optimizer.zero_grad()
                squares(model, x).backward()
                optimizer.step()
        assert [i.event.step for i in guard.incidents] == [1]


def test_a_guard_that_is_dropped_without_close_lets_go(tmp_path):
    """Nobody closes everything; an old guard must not rule over what comes after it."""
    model = linear()
    guard = Guard(model, sgd(model), settings=QUICK)
    guard.step(squares, GOOD)
    del guard, model
    gc.collect()
    torch.save({"weight": BAD}, tmp_path / "later.pt")
    assert (tmp_path / "later.pt").exists()


def test_saving_what_is_not_the_models_is_nobodys_business(tmp_path, capfd):
    """Data with NaN for missing values and masks of -inf are saved by many."""
    model = linear()
    with Guard(model, sgd(model), settings=QUICK) as guard:
        guard.step(squares, GOOD)
        torch.save({"features": BAD, "mask": torch.full((2, 2), -math.inf)}, tmp_path / "data.pt")
    assert torch.isnan(torch.load(tmp_path / "data.pt")["features"]).all()
    assert guard.incidents == []
    assert capfd.readouterr().err == ""


def test_the_next_guard_hears_though_the_last_was_never_closed():
    def fold(bad):
        model = linear()
        optimizer = sgd(model)
        guard = Guard(model, optimizer, settings=QUICK)
        for x in guard([GOOD, BAD, GOOD] if bad else [GOOD]):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
        return [i.event.step for i in guard.incidents]

    assert fold(bad=False) == []
    assert fold(bad=True) == [1]


def test_a_loader_that_counts_for_itself_gives_each_batch_once():
    class Loader:
        def __init__(self, batches):
            self.batches, self.at = batches, 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.at == len(self.batches):
                raise StopIteration
            self.at += 1
            return self.batches[self.at - 1]

    model = linear()
    optimizer = sgd(model)
    loader, seen = Loader([GOOD + i for i in range(3)] + [BAD] + [GOOD + i for i in range(3)]), []
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(loader):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
            if not guard.replaying:
                seen.append(x)
    assert len(guard.incidents) == 1
    assert len(seen) == 7 and len({id(x) for x in seen}) == 7


# -- how it is run again ------------------------------------------------------------------------


class Counting(nn.Module):
    """Its buffer is corrupted by a batch of one, while it trains."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 1)
        self.register_buffer("spread", torch.ones(2))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.spread.copy_(0.9 * self.spread + 0.1 * (x - x.mean(0)).sum(0) / (len(x) - 1))
        return self.fc(x)


def test_a_step_is_run_again_in_the_mode_it_was_run_in():
    model = Counting()
    with Guard(model, sgd(model)) as guard:
        for x in [GOOD, torch.ones(1, 2), GOOD]:
            guard.step(squares, x)
        model.eval()  # as one does behind the last epoch; the buffer is looked at after that
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.symptom) == (1, "buffer")
    assert (incident.location.op, incident.diagnosis.cause) == ("aten.div", "zero_denominator")
    assert not model.training and not model.fc.training
    assert torch.isfinite(model.spread).all()


def test_complex_numbers_are_traced():
    model = nn.Linear(2, 2, bias=False, dtype=torch.complex64)

    def loss(model, x):
        return torch.angle(model(x) * x).cos().mean() + model(x).abs().mean().log()

    guard = Guard(model, sgd(model), settings=QUICK)
    assert guard.step(loss, torch.ones(2, 2, dtype=torch.complex64)).applied
    outcome = guard.step(loss, torch.zeros(2, 2, dtype=torch.complex64))
    assert outcome.incident.location.op == "aten.log"


@pytest.mark.parametrize("where", ["trace", "diagnosis"])
def test_an_error_of_ours_is_reported_and_the_training_goes_on(where, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise LookupError("lost")

    monkeypatch.setattr(OpTrace, "is_strict", False)
    home = OpTrace if where == "trace" else investigation
    monkeypatch.setattr(home, "_inspect" if where == "trace" else "diagnose", broken)
    model = linear()
    optimizer = sgd(model)
    with Guard(model, optimizer) as guard:
        for x in guard([GOOD, BAD, GOOD]):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
    (incident,) = guard.incidents
    assert incident.event.step == 1 and incident.action.kind == "skipped"
    assert "which is a bug: LookupError: lost" in incident.location.note
    assert torch.isfinite(model.weight).all()
