"""The short way of an ordinary iteration notes what the general way notes, and costs few calls."""

import contextlib
import io
import json
import sys

import pytest
import torch

from stayfinite import Guard
from stayfinite.config import Settings
from stayfinite.investigate.entry import investigate
from stayfinite.recover.policy import Policy
from stayfinite.runtime.loop.ordinary import OrdinaryIteration
from stayfinite.runtime.script.run_script import ScriptRun


def _train(clips: bool, bad_at: int | None, has_loader: bool, num_steps: int = 24):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = [torch.randn(2, 4) for _ in range(num_steps)]
    if bad_at is not None:
        rows[bad_at] = torch.full((2, 4), float("nan"))
    for x in torch.utils.data.DataLoader(rows, batch_size=None) if has_loader else rows:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _run(folder, body):
    run = ScriptRun(Settings(), Policy(), folder, investigate)
    with contextlib.redirect_stderr(io.StringIO()):
        weights = run.run_call(body)
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    steps = [
        {k: v for k, v in line.items() if k not in ("t", "ms")} for line in lines if "step" in line
    ]
    kept = [line for line in steps if line.get("event") in (None, "incident")]
    for line in kept:
        line.pop("id", None)
    return weights, kept, len(run.engine.incidents)


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize(("clips", "bad_at"), [(False, None), (True, None), (False, 9), (True, 9)])
def test_the_short_way_and_the_general_way_leave_the_same_behind(
    tmp_path, monkeypatch, clips, bad_at, has_loader
):
    taken = []
    original = OrdinaryIteration.may_step

    def counted(self, optimizer):
        answer = original(self, optimizer)
        taken.append(answer)
        return answer

    monkeypatch.setattr(OrdinaryIteration, "may_step", counted)
    short = _run(tmp_path / "short", lambda: _train(clips, bad_at, has_loader))
    # The first step shows what is ordinary; so does the one after a bad one.
    assert taken.count(True) == (23 if bad_at is None else 21)
    monkeypatch.setattr(OrdinaryIteration, "may_step", lambda self, optimizer: None)
    monkeypatch.setattr(OrdinaryIteration, "takes_backward", lambda self, loss: False)
    monkeypatch.setattr(OrdinaryIteration, "is_over_by", lambda self, loader: False)
    monkeypatch.setattr(OrdinaryIteration, "is_over_by_step", lambda self, window: False)
    monkeypatch.setattr(OrdinaryIteration, "takes_batch", lambda self, *given: False)
    general = _run(tmp_path / "general", lambda: _train(clips, bad_at, has_loader))
    assert short[2] == general[2] == (0 if bad_at is None else 1)
    assert short[1] == general[1]
    for mine, theirs in zip(short[0], general[0]):
        assert torch.equal(mine, theirs)


def test_gradients_of_several_kinds_are_taken_the_short_way_too():
    model = torch.nn.ModuleDict(
        {"table": torch.nn.Embedding(5, 3, sparse=True), "wide": torch.nn.Linear(3, 1).double()}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    for index in guard([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4])]):
        optimizer.zero_grad()
        loss = model["wide"](model["table"](index).double()).pow(2).mean()
        if int(index[0]) == 3:
            loss = loss * float("inf")
        loss.backward()
        optimizer.step()
    guard.close()
    assert [i.event.step for i in guard.incidents] == [1]
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(("has_loader", "most"), [(True, 29), (False, 24)])
def test_a_healthy_step_goes_through_few_functions_of_ours(tmp_path, has_loader, most):
    """Between two steps the processor's caches are cold: each function is a cost of its own."""
    steps: list[list[str]] = []

    def note(frame, event, _):
        if event == "call" and str(frame.f_globals.get("__name__", "")).startswith("stayfinite."):
            steps[-1].append(frame.f_code.co_name)

    def body():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        rows = [torch.randn(2, 4) for _ in range(24)]
        for x in torch.utils.data.DataLoader(rows, batch_size=None) if has_loader else rows:
            steps.append([])
            sys.setprofile(note)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    run = ScriptRun(Settings(), Policy(), tmp_path / "run", investigate)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            run.run_call(body)
    finally:
        sys.setprofile(None)
    # Some steps also take a snapshot or a deep check; when, depends on how long the steps take.
    ordinary = min(steps[8:-1], key=len)
    assert ordinary.count("may_step") == 1
    assert len(ordinary) <= most, ordinary
