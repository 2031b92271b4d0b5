"""When corrupted state is noticed depends on the clock; what the training ends with does not."""

import sys

import pytest
import torch
from tests.faults import forms, recipe, test_bitwise
from tests.faults.test_bitwise import PLAIN, differences, train
from tests.sweep import sweep

from stayfinite import Guard, Settings
from stayfinite.detect import deferred
from stayfinite.runtime.deferral import Deferral

EVERY = (1, 2, 3, 4, 5, 6, 20)


def checked_every(num_steps, **settings):
    """The clock has no say: the state is looked at after so many steps, and at the end."""
    return Settings(diagnose=False, budget=1e-12, max_batches=num_steps, **settings)


@sweep(form=["step", "loader", "run"], precision=["fp32", "fp16"], num_steps=EVERY)
def test_the_same_weights_whenever_it_is_noticed(
    form, precision, num_steps, tmp_path, as_script, monkeypatch
):
    for module in (forms, test_bitwise):
        monkeypatch.setattr(module, "QUICK", checked_every(num_steps))
    found, incidents = train(form, "adamw", precision, "optimizer_state", False, tmp_path)
    assert [i.event.step for i in incidents] == [recipe.BAD]
    wanted, _ = train(PLAIN[form], "adamw", precision, "optimizer_state", True, tmp_path)
    assert differences(found, wanted) == []


def batches(corrupting, bad_inputs, is_left_out):
    """The recipe's, with these that corrupt the moments and these that have a NaN."""
    found = []
    for i, (x, y, _) in enumerate(recipe.batches("", False)):
        if i in bad_inputs:
            x[0, 0] = float("nan")
        if not is_left_out or i not in (*corrupting, *bad_inputs):
            found.append((x, y, i in corrupting))
    return found


def make(is_fused=False):
    parts = recipe.make("adamw", "fp32", "optimizer_state")
    parts[0].precision = "fp32"
    for group in parts[1].param_groups:
        group.update(fused=is_fused, foreach=False)
    return parts


def compare(form, settings, corrupting, bad_inputs=()):
    """(steps, lines) of the incidents; what is left is that of the run without those batches."""
    parts = make(settings.deferred)
    recipe.loop(batches(corrupting, bad_inputs, True), *parts)
    wanted = recipe.everything(*parts)
    parts = make(settings.deferred)
    data = batches(corrupting, bad_inputs, False)
    with Guard(*parts, clip_norm=1.0, settings=settings) as guard:
        if form == "step":
            for batch in data:
                guard.step(recipe.loss_of, batch)
        else:
            recipe.loop(guard(data), *parts)
    assert differences(recipe.everything(*parts), wanted) == []
    return [(i.event.step, i.location.op) for i in guard.incidents]


@sweep(form=["step", "loader"], bad_inputs=[(9,), (10,), (9, 10)], num_steps=EVERY)
def test_a_bad_batch_behind_it_is_an_incident_of_its_own(form, bad_inputs, num_steps):
    found = compare(form, checked_every(num_steps), [8], bad_inputs)
    assert found == [(8, "aten.fill_"), *((i, None) for i in bad_inputs)]


@sweep(form=["step", "loader"], second=[9, 10], num_steps=EVERY)
def test_two_steps_that_corrupt_the_state_are_both_found(form, second, num_steps):
    found = compare(form, checked_every(num_steps), [8, second])
    assert found == [(8, "aten.fill_"), (second, "aten.fill_")]


@sweep(
    form=["step", "loader"], arrival=["late", "at once"], num_steps=EVERY,
    bad=[((), (8,)), ((8,), ()), ((8, 9), ()), ((8,), (10,))],
)  # fmt: skip
def test_the_same_in_the_deferred_mode(form, arrival, num_steps, bad, monkeypatch):
    """Flags arrive as on a device that is behind, or as on one that is not."""
    monkeypatch.setattr(Deferral, "defers_on_host", True)
    if arrival == "late":
        monkeypatch.setattr(deferred._Reading, "is_ready", lambda self: False)
    corrupting, bad_inputs = bad
    found = compare(form, checked_every(num_steps, deferred=True), corrupting, bad_inputs)
    assert [step for step, _ in found] == sorted((*corrupting, *bad_inputs))


def test_a_step_inside_a_step_is_not_looked_at_by_itself():
    """Torch's hooks are called for the base class too, once an optimizer of that class was made."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    assert compare("loader", checked_every(20), [8]) == [(8, "aten.fill_")]


RESUMED = """
import torch

class Corrupting(torch.optim.AdamW):
    def step(self, closure=None):
        super().step(closure)
        last = self.param_groups[0]["params"][-1]
        if last.grad.max() > 1e6:
            self.state[last]["exp_avg"][0] = float("nan")

model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.{last})
optimizer = Corrupting(model.parameters(), lr=1e-6)
model.load_state_dict({{k: torch.full_like(v, 7) for k, v in model.state_dict().items()}})
saved = optimizer.state_dict()
saved["state"] = {{
    i: {{"step": torch.tensor(100.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)}}
    for i, p in enumerate(model.parameters())
}}
optimizer.load_state_dict(saved)
for i in range(12):
    optimizer.zero_grad()
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    model(x).mean().mul(1e9 if i == 8 else 1.0).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("last", ["Linear(2, 1)", "BatchNorm1d(2)"])
def test_going_back_ends_at_what_was_loaded_after_the_optimizer_was_made(
    last, tmp_path, as_script, monkeypatch
):
    """A loop without a loader shows itself with its first backward, when all has been loaded."""
    monkeypatch.setattr(forms, "QUICK", checked_every(20))
    script = tmp_path / "resumed.py"
    script.write_text(RESUMED.format(last=last))
    run, code = forms.run_script(str(script), [], tmp_path / "run")
    assert code == 0
    assert len(run.engine.incidents) == 1
    main = sys.modules["__main__"]
    assert all((p - 7).abs().max() < 0.1 for p in main.model.parameters())
    assert all(held["step"] > 100 for held in main.optimizer.state.values())
