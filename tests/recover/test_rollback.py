"""After a rollback the training is what it would have been without the batches that were left out."""

import pytest
import torch
from tests.faults import recipe
from tests.faults.test_bitwise import differences

from stayfinite import BudgetExceededError, Guard, Policy, Settings
from stayfinite.recover.policy import Rung

FEW = Settings(diagnose=False, budget=1e-9, max_batches=3)
"""A snapshot every third step: there is something to go back over."""


def train(form, kind, precision, defect, policy="rollback", settings=FEW):
    parts = recipe.make(kind, precision, defect)
    parts[0].precision = precision
    data = recipe.batches(defect, False)
    with Guard(*parts, clip_norm=1.0, policy=policy, settings=settings) as guard:
        if form == "step":
            for batch in data:
                guard.step(recipe.loss_of, batch)
        else:
            recipe.loop(guard(data), *parts)
    return recipe.everything(*parts), guard


def plain(kind, precision, defect, left_out):
    parts = recipe.make(kind, precision, defect)
    parts[0].precision = precision
    data = [b for i, b in enumerate(recipe.batches(defect, False)) if i not in left_out]
    recipe.loop(data, *parts)
    return recipe.everything(*parts)


@pytest.mark.parametrize("defect", recipe.DEFECTS)
@pytest.mark.parametrize(
    ("kind", "precision"), [("adamw", "fp32"), ("sgd", "fp32"), ("adam", "fp16")]
)
@pytest.mark.parametrize("form", ["step", "loader"])
def test_a_rollback_is_a_run_that_never_saw_those_batches(form, kind, precision, defect):
    found, guard = train(form, kind, precision, defect)
    (incident,) = guard.incidents
    assert incident.action.kind == "rolled_back"
    assert incident.action.restored_step == 6
    left_out = set(guard.ledger.steps())
    assert left_out >= {6, 7, recipe.BAD}
    assert left_out == set(range(6, max(left_out) + 1))
    assert guard.ledger.steps("skipped") == [recipe.BAD]
    assert differences(found, plain(kind, precision, defect, left_out)) == []


def small(policy, bad=(5,), count=12, value=float("nan"), settings=FEW, **options):
    """A tiny training over a DataLoader, in which some batches are bad."""
    torch.manual_seed(0)
    x = torch.randn(count * 2, 3)
    for step in bad:
        x[2 * step + 1, 0] = value
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(x)
    guard = Guard(model, optimizer, policy=policy, settings=settings, **options)
    sizes = []
    with guard:
        for (batch,) in guard(torch.utils.data.DataLoader(data, batch_size=2)):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            if not guard.replaying:
                sizes.append(len(batch))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    return guard, model, optimizer, sizes


def test_the_learning_rate_is_lowered_and_again_at_the_next_rollback():
    policy = Policy(name="rollback", lr_factor=0.5)
    guard, _, optimizer, _ = small(policy, bad=(4, 10), count=14)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    assert "the learning rate is now 0.05 (times 0.5)" in guard.incidents[0].action.detail


def test_two_rollbacks_to_the_same_snapshot_lower_the_rate_twice():
    guard, _, optimizer, _ = small(Policy(name="rollback", lr_factor=0.5), bad=(4, 5))
    assert [i.action.restored_step for i in guard.incidents] == [3, 3]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@pytest.mark.parametrize("form", ["step", "loader"])
def test_a_schedule_goes_on_from_the_lower_rate(form):
    _, plain_guard = train(form, "adamw", "fp32", "loss", "rollback")
    _, guard = train(form, "adamw", "fp32", "loss", Policy(name="rollback", lr_factor=0.5))
    (wanted,), (found,) = (
        [g["lr"] for g in h.optimizer.param_groups] for h in (plain_guard, guard)
    )
    assert found == pytest.approx(wanted / 2)


def test_the_next_batches_are_left_out_as_well():
    guard, *_ = small(Policy(name="rollback", skip_next=2), bad=(4,))
    assert guard.ledger.steps("dropped") == [5, 6]
    assert guard.ledger.steps("rolled_back") == [3]
    entry = next(e for e in guard.ledger if e.kind == "dropped")
    assert entry.indices == (10, 11)


def test_the_next_batches_are_left_out_by_step_as_well():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.full((2, 1), float("nan") if i == 4 else 1.0) for i in range(8)]
    policy = Policy(name="rollback", skip_next=2)
    with Guard(model, optimizer, policy=policy, settings=FEW) as guard:
        applied = [guard.step(lambda m, x: m(x).pow(2).mean(), x).applied for x in data]
    assert applied == [True, True, True, True, False, False, False, True]


def test_a_ladder_skips_then_rolls_back_then_stops():
    policy = Policy.ladder(Rung("skip", 2), Rung("rollback", 1, lr_factor=0.5))
    with pytest.raises(BudgetExceededError) as caught:
        small(policy, bad=(4, 5, 6, 7))
    incident = caught.value.incident
    assert incident.action.kind == "stopped"
    assert incident.event.step == 7
    assert str(caught.value).splitlines()[0] == (
        "4 bad steps in a row and 1 rollbacks: the policy skip:2,rollback:1:lr=0.5 has nothing left "
        "to try; the training cannot go on by rolling back"
    )


def test_rollbacks_have_a_budget():
    with pytest.raises(BudgetExceededError, match="1 bad steps in a row and 2 rollbacks"):
        small(Policy(name="rollback", max_rollbacks=2), bad=(3, 5, 7))


def test_the_ledger_is_on_disk_and_can_be_replayed(tmp_path):
    from stayfinite.recover.ledger import Ledger

    guard, _, _, _ = small("skip", bad=(2, 7), run_dir=tmp_path)
    kept = Ledger.load(tmp_path)
    assert list(kept) == list(guard.ledger)
    assert [(e.step, e.indices) for e in kept] == [(2, (4, 5)), (7, (14, 15))]
    assert kept[0].incident == guard.incidents[0].id
    assert kept[0].reason.startswith("step 2: the loss is nan")
    again = [batch for _, batch in kept.replay(torch.arange(24.0))]
    assert [b.tolist() for b in again] == [[4.0, 5.0], [14.0, 15.0]]


def test_sanitizing_drops_the_bad_samples_only():
    guard, _, _, sizes = small("sanitize", bad=(5,))
    assert set(sizes) == {2}  # the loop sees its own batches; the step is made from a copy
    (incident,) = guard.incidents
    assert incident.action.kind == "sanitized"
    (entry,) = guard.ledger
    assert (entry.kind, entry.step, entry.rows, entry.indices) == ("sanitized", 5, (1,), (11,))


def test_sanitizing_is_a_run_on_the_clean_samples():
    _, found, _, _ = small("sanitize", bad=(5,))
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(12):
        batch = x[10:11] if i == 5 else x[2 * i : 2 * i + 2]
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    assert torch.equal(found.weight, model.weight)


def test_replacing_keeps_the_size_of_the_batch():
    guard, _, _, sizes = small(Policy(name="sanitize", sanitizer="replace"), bad=(5,))
    assert set(sizes) == {2}
    assert guard.incidents[0].action.detail == (
        "1 sample with non-finite values set to zero; the step was made with the rest"
    )


def test_a_fault_that_is_not_in_the_data_is_skipped_by_sanitize():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, policy="sanitize", settings=FEW) as guard:
        outcome = guard.step(
            lambda m, x: m(x).mean() + torch.log(x.sum() * 0 - 1), torch.ones(2, 1)
        )
    assert not outcome.applied
    assert [i.action.kind for i in guard.incidents] == ["skipped"]


@pytest.mark.parametrize("form", ["step", "loader"])
def test_averages_go_back_too(form):
    def run(batches, policy):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(model)
        with Guard(model, optimizer, policy=policy, settings=FEW) as guard:
            for x in guard(batches) if form == "loader" else batches:
                if form == "loader":
                    optimizer.zero_grad()
                    model(x).pow(2).mean().backward()
                    optimizer.step()
                    average.update_parameters(model)
                elif guard.step(lambda m, x: m(x).pow(2).mean(), x).applied:
                    average.update_parameters(model)
        return guard, {**model.state_dict(), **average.state_dict()}

    data = [torch.randn(4, 2) for _ in range(10)]
    data[5] = data[5] * float("nan")
    for policy in ("rollback", "skip"):
        guard, found = run(data, policy)
        left_out = set(guard.ledger.steps())
        assert left_out == ({3, 4, 5} if policy == "rollback" else {5})
        _, wanted = run([x for i, x in enumerate(data) if i not in left_out], "raise")
        assert all(torch.equal(found[k], wanted[k]) for k in wanted)


def test_an_average_that_alone_went_bad_is_found_and_put_right():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    with Guard(model, optimizer, policy="rollback", settings=FEW) as guard:
        for i, x in enumerate(guard([torch.randn(4, 2) for _ in range(9)])):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            average.update_parameters(model)
            if i == 4 and not guard.replaying:
                with torch.no_grad():
                    average.module.weight.fill_(float("inf"))
    assert guard.incidents[0].event.symptom == "average"
    assert all(torch.isfinite(p).all() for p in average.parameters())


def test_a_snapshot_on_disk_does_the_same(tmp_path):
    tiny = Settings(diagnose=False, budget=1e-9, max_batches=3, snapshot_ram_share=1e-12)
    guard, found, _, _ = small("rollback", bad=(5,), settings=tiny, run_dir=tmp_path)
    file = tmp_path / "snapshots" / "snapshot.pt"
    kept = torch.load(file)
    assert (kept["kind"], kept["step"] % 3) == ("stayfinite.snapshot", 0)
    _, wanted, _, _ = small("rollback", bad=(5,))
    assert torch.equal(found.weight, wanted.weight)
    assert guard.incidents[0].action.restored_step == 3


def test_a_module_that_was_frozen_since_the_snapshot_stays_frozen():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = Settings(diagnose=False, budget=1e-9)
    modes = []
    with Guard(model, optimizer, policy="rollback", settings=settings) as guard:
        for i in range(8):
            if i == 3:
                model[1].eval()
            x = torch.full((4, 2), float("nan")) if i == 5 else torch.randn(4, 2)
            guard.step(lambda m, x: m(x).pow(2).mean(), x)
            modes.append(model[1].training)
    assert [i.action.kind for i in guard.incidents] == ["rolled_back"]
    assert modes == [True] * 3 + [False] * 5


def test_the_ledger_names_the_feature_and_the_sample_of_the_data_set():
    data = torch.ones(12, 3)
    data[7, 2] = float("inf")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    with guard:
        for i, x in enumerate(guard(torch.utils.data.DataLoader(data, batch_size=2))):
            if i % 2 == 0:
                optimizer.zero_grad()
            (model(x).square().mean() / 2).backward()  # two batches a step
            if i % 2:
                optimizer.step()
    entries = {e.step: e for e in guard.ledger}
    assert sorted(entries) == [2, 3]  # the whole window
    assert entries[3].first_bad == "sample 7 of the data set, feature 2"
    assert entries[2].first_bad == ""
