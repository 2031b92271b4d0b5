"""A run in which one batch is bad ends bitwise equal to the same run without that batch."""

import random
import runpy
import sys

import numpy as np
import pytest
import torch
from tests.faults import recipe
from tests.faults.forms import QUICK, SCRIPTS, run_script
from tests.sweep import sweep

from stayfinite import Guard

# A DataLoader draws a random number of its own, so a script is compared with the script.
PLAIN = {"step": "plain", "loader": "plain", "run": "plain script"}


def train(form, kind, precision, defect, is_left_out, tmp_path):
    """(what was remembered at the end, incidents)."""
    if form == "run":
        args = [kind, precision, defect, *(["without"] if is_left_out else [])]
        run, code = run_script("recipe.py", args, tmp_path)
        assert code == 0
        main = sys.modules["__main__"]
        parts = main.model, main.optimizer, main.scheduler, main.scaler
        return recipe.everything(*parts), run.engine.incidents
    if form == "plain script":
        sys.argv = ["recipe.py", kind, precision, defect, *(["without"] if is_left_out else [])]
        left = runpy.run_path(str(SCRIPTS / "recipe.py"), run_name="__main__")
        parts = (left[name] for name in ("model", "optimizer", "scheduler", "scaler"))
        return recipe.everything(*parts), []
    parts = recipe.make(kind, precision, defect)
    parts[0].precision = precision
    data = recipe.batches(defect, is_left_out)
    if form == "plain":
        recipe.loop(data, *parts)
        return recipe.everything(*parts), []
    with Guard(*parts, clip_norm=1.0, settings=QUICK) as guard:
        if form == "step":
            for batch in data:
                guard.step(recipe.loss_of, batch)
        else:
            recipe.loop(guard(data), *parts)
    return recipe.everything(*parts), guard.incidents


def differences(one, other):
    """Names of what is not the same, bit for bit."""
    keys = sorted(set(one) | set(other))
    return [k for k in keys if k not in one or k not in other or not same(one[k], other[k])]


def same(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, np.ndarray):
        return a.tobytes() == b.tobytes()
    return a == b


@sweep(
    form=["step", "loader", "run"], defect=recipe.DEFECTS,
    setup=["adamw fp32", "adamw fp16", "sgd fp32", "adam fp16"],
)  # fmt: skip
def test_a_bad_batch_leaves_no_trace(form, defect, setup, tmp_path, as_script):
    kind, precision = setup.split()
    found, incidents = train(form, kind, precision, defect, False, tmp_path)
    assert [i.event.step for i in incidents] == [recipe.BAD]
    wanted, _ = train(PLAIN[form], kind, precision, defect, True, tmp_path)
    assert differences(found, wanted) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("form", ["step", "loader", "run"])
def test_a_healthy_run_is_the_plain_run(form, precision, tmp_path, as_script):
    found, incidents = train(form, "adamw", precision, "loss", True, tmp_path)
    assert incidents == []
    wanted, _ = train(PLAIN[form], "adamw", precision, "loss", True, tmp_path)
    assert differences(found, wanted) == []


@pytest.mark.parametrize("defect", recipe.DEFECTS)
def test_the_comparison_would_see_it(defect, tmp_path):
    """The plain run with the bad batch ends differently; so do runs that differ in one draw."""
    corrupted, _ = train("plain", "adamw", "fp32", defect, False, tmp_path)
    clean, _ = train("plain", "adamw", "fp32", defect, True, tmp_path)
    changed = differences(corrupted, clean)
    assert "model last.weight" in changed
    assert {"rng torch", "rng python", "rng numpy", "scheduler last_epoch"} <= set(changed)


class _Rare(torch.nn.Module):
    """Draws from Python's or NumPy's generator for the first time in the bad step."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.fc = torch.nn.Linear(2, 1)

    def forward(self, x):
        if x[0, 0] > 50:
            x = x + (random.random() if self.source == "python" else float(np.random.rand()))
            x = x + torch.log(x * 0 - 1)
        return self.fc(x)


@pytest.mark.parametrize("source", ["python", "numpy"])
@pytest.mark.parametrize("form", ["step", "loader"])
def test_a_generator_used_for_the_first_time_in_the_bad_step_is_put_back(form, source):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = _Rare(source)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.ones(2, 2) * (99 if i == 20 else 1) for i in range(24)]
    before = random.getstate(), np.random.get_state()[2]
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in data if form == "step" else guard(data):
            if form == "step":
                guard.step(lambda m, x: m(x).pow(2).mean(), x)
            else:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
    assert [i.event.step for i in guard.incidents] == [20]
    assert (random.getstate(), np.random.get_state()[2]) == before


@pytest.mark.parametrize("form", ["step", "loader"])
def test_a_shuffle_of_the_epoch_is_not_drawn_again_after_a_bad_step(form):
    """Python's generator is used once an epoch; a bad step later in the epoch leaves it alone."""

    def orders(is_guarded):
        torch.manual_seed(0)
        random.seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        with Guard(model, optimizer, settings=QUICK) as guard:
            for _ in range(3):
                order = list(range(40))
                random.shuffle(order)
                found.append(order)
                data = [torch.full((2, 2), float("nan") if i == 20 else 1.0) for i in range(40)]
                if not is_guarded:
                    continue
                if form == "step":
                    for x in data:
                        guard.step(lambda m, x: m(x).pow(2).mean(), x)
                    continue
                for x in guard(data):
                    optimizer.zero_grad()
                    model(x).pow(2).mean().backward()
                    optimizer.step()
        assert len(guard.incidents) == (3 if is_guarded else 0)
        return found

    assert orders(True) == orders(False)


@pytest.mark.parametrize("form", ["step", "loader"])
def test_three_bad_batches_in_two_epochs_leave_no_trace(form):
    bad = {1: {3, 4}, 2: {13}}

    def run(is_guarded):
        parts = recipe.make("adamw", "fp32", "loss", total_steps=64)
        parts[0].precision = "fp32"
        with Guard(*parts, clip_norm=1.0, settings=QUICK) as guard:
            for epoch in (1, 2):
                data = enumerate(recipe.batches("", False))
                data = [(x, y, i in bad[epoch]) for i, (x, y, _) in data]
                if not is_guarded:
                    recipe.loop([b for b in data if not b[2]], *parts)
                elif form == "loader":
                    recipe.loop(guard(data), *parts)
                else:
                    for batch in data:
                        guard.step(recipe.loss_of, batch)
        return recipe.everything(*parts), [i.event.step for i in guard.incidents]

    found, steps = run(True)
    wanted, _ = run(False)
    assert steps == [3, 4, recipe.NUM_BATCHES + 13]
    assert differences(found, wanted) == []
