"""The guard's own contract: outcomes, policies, and a clear word for every wrong call."""

import math

import pytest
import torch
from tests.guards import BAD, GOOD, NAN, QUICK, VALID_POLICIES, guarded, linear, sgd, squares
from torch import nn

from stayfinite import (
    BudgetExceededError,
    Guard,
    NonFiniteError,
    Policy,
    Settings,
    UsageError,
)


def message(call):
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


# -- wrong calls --------------------------------------------------------------------------------


def test_model_and_optimizer_share_no_parameter():
    model, other = linear(), nn.Linear(3, 3)
    assert message(lambda: Guard(model, sgd(other))) == (
        "the optimizer moves 2 parameters and Linear has 2, but they share none; build the "
        "optimizer from this model's .parameters() (after any copy, .to() or wrapping)"
    )


def test_some_shared_parameters_are_enough():
    model = linear()
    Guard(model, torch.optim.SGD([model.weight, nn.Parameter(torch.zeros(1))], lr=0.1)).close()


@pytest.mark.parametrize("policy", ["ignore", "", "Skip", "RAISE"])
def test_unknown_policy(policy):
    names = ", ".join(VALID_POLICIES)
    assert message(lambda: guarded(policy=policy)) == (
        f"unknown policy {policy!r}; choose one of: {names}"
    )


def test_the_policies_that_the_design_names_are_valid():
    assert {"raise", "skip"} <= set(VALID_POLICIES)


def test_a_policy_of_the_wrong_type():
    assert message(lambda: guarded(policy=3)) == (
        f"`policy` must be one of {', '.join(VALID_POLICIES)} or a Policy, got 3"
    )


@pytest.mark.parametrize("name", ["max_consecutive_skips", "max_total_skips"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_policy_with_a_wrong_limit(name, value):
    assert message(lambda: Policy(**{name: value})) == (
        f"`{name}` must be a whole number of at least 1, got {value!r}"
    )


@pytest.mark.parametrize(
    ("model", "seen"), [(3, "int"), (None, "NoneType"), ({}, "nothing"), ({"a": 1}, "int")]
)
def test_a_model_that_is_none(model, seen):
    good = linear()
    assert message(lambda: Guard(model, sgd(good))) == (
        f"`model` must be a torch.nn.Module or a dict of them, got {seen}"
    )


def test_an_optimizer_that_is_none():
    assert message(lambda: Guard(linear(), "adam")) == (
        "`optimizer` must be a torch optimizer, got str"
    )


@pytest.mark.parametrize("value", [0, -1.0, math.nan, "1"])
def test_clip_norm(value):
    assert (
        message(lambda: guarded(clip_norm=value))
        == f"`clip_norm` must be a number above 0, got {value!r}"
    )


def test_settings_of_a_config_file():
    text = message(lambda: guarded(settings={"budget": 3, "speed": "high"}))
    assert text.splitlines()[0] == "2 problems with the settings:"
    assert guarded(settings={"budget": 0.5, "diagnose": False}).engine.settings.budget == 0.5


def test_a_loss_that_is_no_scalar():
    assert message(lambda: guarded().step(lambda m, x: m(x), GOOD)) == (
        "loss_fn must return a scalar, got shape (3, 1); reduce it, for instance with .mean()"
    )


def test_a_loss_of_one_element_is_a_scalar():
    assert guarded().step(lambda m, x: m(x[:1]), GOOD).applied


@pytest.mark.parametrize(
    ("loss", "seen"), [(0.5, "float"), (None, "NoneType"), ((torch.ones(()), 1), "tuple")]
)
def test_a_loss_that_is_no_tensor(loss, seen):
    assert message(lambda: guarded().step(lambda m, x: loss, GOOD)) == (
        f"loss_fn must return a tensor, got {seen}; return the scalar loss, not a number or a tuple"
    )


def test_a_loss_that_needs_no_gradient():
    assert message(lambda: guarded().step(lambda m, x: squares(m, x).detach(), GOOD)) == (
        "the loss needs no gradient: nothing in it depends on a parameter that requires grad; "
        "look for .detach(), torch.no_grad() or frozen parameters"
    )


def test_a_wrong_loss_leaves_the_guard_usable():
    guard = guarded()
    message(lambda: guard.step(lambda m, x: 1, GOOD))
    assert guard.step(squares, GOOD).applied
    assert guard.incidents == []


def test_an_exhausted_loader():
    stream = iter([GOOD])
    list(stream)
    guard = guarded()
    assert message(lambda: list(guard(stream))) == (
        "the loader gave no batch: it is an iterator that is already exhausted; "
        "pass the loader itself, not iter(loader)"
    )
    guard.close()


def test_an_empty_loader_is_no_error():
    guard = guarded()
    assert list(guard([])) == []
    guard.close()


@pytest.mark.parametrize(("loader", "seen"), [(3, "int"), (nn.Linear(1, 1), "Linear")])
def test_what_is_no_loader(loader, seen):
    guard = guarded()
    assert message(lambda: next(iter(guard(loader)))) == (
        f"guard(...) takes a loader or another iterable of batches, got {seen}"
    )


def test_what_is_no_loader_is_reported_at_the_call_itself():
    """Not first when the loop begins, far from the mistake."""
    with pytest.raises(UsageError):
        guarded()(3)


def test_an_error_in_the_loss_function_is_the_users_own():
    def broken(model, x):
        raise KeyError("mine")

    guard = guarded()
    with pytest.raises(KeyError, match="mine"):
        guard.step(broken, GOOD)
    assert guard.incidents == []
    assert guard.step(squares, GOOD).applied


# -- outcomes and policies ----------------------------------------------------------------------


def test_outcome_of_a_good_and_a_bad_step():
    guard = guarded()
    good = guard.step(squares, GOOD)
    assert (good.step, good.applied, good.incident) == (0, True, None)
    assert good.grad_norm > 0
    bad, after = (guard.step(squares, x) for x in (BAD, GOOD))
    assert (bad.step, bad.applied) == (1, False)
    assert math.isnan(bad.loss)
    assert bad.incident is guard.incidents[0]
    assert (after.step, after.applied) == (2, True)
    assert math.isfinite(after.loss)
    assert repr(good).startswith("Outcome(step=0, loss=")
    assert repr(bad) == "Outcome(step=1, loss=nan, skipped)"


def test_clipping_is_done_and_the_norm_is_that_before_it():
    model = linear()
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), lr=1.0), clip_norm=0.01, settings=QUICK
    )
    before = [p.detach().clone() for p in model.parameters()]
    outcome = guard.step(lambda m, x: squares(m, x) * 100, GOOD)
    change = [p.detach() - b for p, b in zip(model.parameters(), before)]
    moved = math.sqrt(sum(float(c.pow(2).sum()) for c in change))
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert outcome.grad_norm > 1


def test_policy_raise_carries_the_incident_and_leaves_clean_state():
    model = linear()
    guard = guarded(model, policy="raise")
    before = model.weight.detach().clone()
    with pytest.raises(NonFiniteError) as caught:
        guard.step(squares, BAD)
    incident = caught.value.incident
    assert incident is guard.incidents[0]
    assert incident.action.kind == "raised"
    assert str(caught.value).startswith("step 0: the loss is nan, from batch batch at ")
    assert torch.equal(model.weight, before)
    assert guard.step(squares, GOOD).applied


def test_policy_raise_in_a_loop():
    model = linear()
    optimizer = sgd(model)
    with Guard(model, optimizer, policy="raise", settings=QUICK) as guard:
        with pytest.raises(NonFiniteError) as caught:
            for x in guard([GOOD, BAD, GOOD]):
                optimizer.zero_grad()
                squares(model, x).backward()
                optimizer.step()
        assert caught.value.incident.event.step == 1


def test_skipping_for_ever_is_stopped():
    guard = guarded(policy=Policy(max_consecutive_skips=3))
    for _ in range(3):
        assert not guard.step(squares, BAD).applied
    with pytest.raises(BudgetExceededError) as caught:
        guard.step(squares, BAD)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "4 steps in a row were skipped (limit 3); the training cannot go on by skipping"
    )
    assert lines[1].startswith("  where: step 3: the loss is nan")
    assert lines[2].startswith("  try: ")
    assert caught.value.incident.action.kind == "stopped"


def test_a_good_step_in_between_starts_the_count_again():
    guard = guarded(policy=Policy(max_consecutive_skips=2))
    for x in [BAD, BAD, GOOD] * 4:
        guard.step(squares, x)
    assert len(guard.incidents) == 8


def test_the_total_has_a_limit_too():
    guard = guarded(policy=Policy(max_total_skips=2))
    for x in [BAD, GOOD] * 2:
        guard.step(squares, x)
    with pytest.raises(BudgetExceededError, match=r"^3 steps were skipped in all \(limit 2\)"):
        guard.step(squares, BAD)


def test_several_models_have_their_names_in_front():
    models = {"encoder": linear(), "head": nn.Linear(1, 1)}
    optimizer = torch.optim.SGD([p for m in models.values() for p in m.parameters()], lr=0.1)
    guard = Guard(models, optimizer, settings=QUICK)
    with torch.no_grad():
        models["head"].bias.fill_(NAN)

    def loss_of(model, x):
        return models["head"](models["encoder"](x)).pow(2).mean()

    guard.step(loss_of, GOOD)
    (incident,) = guard.incidents
    assert incident.location.chain[0].label == "parameter head.bias"
    assert incident.event.phase == "parameter"


def test_epochs_are_counted_in_a_loop():
    model = linear()
    optimizer = sgd(model)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for _ in range(3):
            for x in guard([GOOD, BAD]):
                optimizer.zero_grad()
                squares(model, x).backward()
                optimizer.step()
    assert [(i.event.step, i.event.epoch) for i in guard.incidents] == [(1, 0), (3, 1), (5, 2)]


def test_the_loss_function_knows_that_it_is_replayed():
    seen = []
    with guarded() as guard:

        def loss_fn(model, x):
            seen.append(guard.replaying)
            return squares(model, x)

        for x in (GOOD, BAD, GOOD):
            guard.step(loss_fn, x)
        assert not guard.replaying
    assert seen == [False, False, True, False]


def test_history_and_figures_of_the_step():
    guard = guarded(clip_norm=1.0, settings=Settings(diagnose=False, history=4))
    for x in [GOOD] * 6 + [BAD]:
        guard.step(squares, x)
    (incident,) = guard.incidents
    assert [r.step for r in incident.history] == [2, 3, 4, 5]
    assert all(math.isfinite(r.loss) and r.lr == (0.1,) for r in incident.history)
    assert incident.event.lr == (0.1,)
    assert math.isnan(incident.event.loss)
    assert incident.environment["torch"] == torch.__version__
