"""Back to mixed precision by careful steps, with every move reported."""

import pytest
import torch

from stayfinite import Guard, PrecisionRamp, Stage, StagedPlan, UsageError

QUICK = {"diagnose": False}


def ramp(**options):
    options = {"stable_steps": 3, "watch_batches": 2, "device_type": "cpu", **options}
    return PrecisionRamp(**options)


def test_the_ladder_of_the_guides():
    """fp32, then 2^10, watched, then 2^12 and so on; growth only every 1000 steps."""
    r = PrecisionRamp(stable_steps=10, device_type="cpu")
    seen = []
    for _ in range(10 + 3 * 100 + 50):
        r.note_applied()
        seen.append(r.precision)
    assert [(m.step, m.after) for m in r.moves] == [
        (10, "float16 at scale 1024"), (110, "float16 at scale 4096"),
        (210, "float16 at scale 16384"), (310, "float16 at scale 65536"),
    ]  # fmt: skip
    assert r.scaler.get_growth_interval() == 1000
    assert seen[8] == "fp32" and seen[-1] == "float16 at scale 65536"


def test_an_incident_falls_back_and_the_next_attempt_waits_longer():
    r = ramp()
    for wait in (3, 6, 12):
        for _ in range(wait - 1):
            r.note_applied()
        assert not r.is_on
        r.note_applied()
        assert r.is_on
        r.note_incident("the loss is inf")
        assert not r.is_on
    assert r.moves[-1].reason == "the loss is inf; next attempt after 24 stable steps"


def test_an_incident_in_fp32_starts_the_count_again():
    r = ramp()
    r.note_applied(), r.note_applied()
    r.note_incident("x")
    r.note_applied(), r.note_applied()
    assert not r.is_on and r.moves == []


def test_too_many_skips_of_the_scaler_fall_back_by_one_scale():
    r = ramp(watch_batches=5)
    for _ in range(3 + 5):
        r.note_applied()
    assert r.precision == "float16 at scale 4096"
    for _ in range(3):
        r.note_skip()
    assert r.precision == "float16 at scale 1024"
    assert r.moves[-1].reason == "3 skipped steps in 0 batches"


def test_epochs_count_where_they_are_asked_for():
    r = ramp(stable_steps=None, stable_epochs=2)
    for _ in range(50):
        r.note_applied()
    r.note_epoch()
    assert not r.is_on
    r.note_incident("x")
    r.note_epoch()  # the epoch of the incident does not count
    r.note_epoch()
    assert not r.is_on
    r.note_epoch()
    assert r.is_on and r.moves[0].reason == "2 stable epochs"


def test_state_in_and_out():
    r = ramp()
    for _ in range(4):
        r.note_applied()
    r.scaler.scale(torch.ones(1))
    other = ramp()
    other.load_state_dict(r.state_dict())
    assert (other.precision, other.moves) == (r.precision, r.moves)
    r.note_applied(), other.note_applied()
    assert other.state_dict() == r.state_dict()
    with pytest.raises(UsageError, match="this one has 1"):
        ramp(scales=(8.0,)).load_state_dict({**r.state_dict(), "rung": 1})


def test_in_fp32_the_scaler_changes_no_bit():
    def train(with_ramp):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        r = ramp(stable_steps=100)
        with Guard(model, optimizer, ramp=r if with_ramp else None, settings=QUICK) as guard:
            for _ in range(5):
                guard.step(lambda m, x: m(x).pow(2).mean(), torch.randn(8, 4))
        return model.weight

    assert torch.equal(train(True), train(False))


class Net(torch.nn.Module):
    """Overflows in half precision only, and only on the marked batch."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


@pytest.mark.parametrize("form", ["step", "loader"])
def test_with_a_guard_it_rises_falls_and_rises_again(form, capsys):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    r = ramp(stable_steps=3, watch_batches=4)
    data = [torch.randn(8, 4) for _ in range(20)]
    data[5] = data[5] * 1e6  # beyond fp16, fine in fp32

    def loss_of(m, x):
        with r.autocast():
            y = m(x)
        return y.float().pow(2).mean() * 1e-9

    with Guard(model, optimizer, ramp=r, settings=QUICK) as guard:
        for x in guard(data) if form == "loader" else data:
            if form == "step":
                guard.step(loss_of, x)
            else:
                optimizer.zero_grad()
                r.scaler.scale(loss_of(model, x)).backward()
                r.scaler.step(optimizer)
                r.scaler.update()
    assert [i.event.step for i in guard.incidents] == [5]
    assert [m.after for m in r.moves][:3] == [
        "float16 at scale 1024",
        "fp32",
        "float16 at scale 1024",
    ]
    assert "step 5: the loss is " in r.moves[1].reason
    assert [w.kind for w in guard.warnings][:3] == ["precision"] * 3
    assert "fp32 -> float16 at scale 1024: 3 stable steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stable_steps": None}, "either `stable_steps` or `stable_epochs`"),
        ({"scales": (4.0, 2.0)}, "`scales` must be positive and rising, got (4.0, 2.0)"),
        (
            {"dtype": torch.float32},
            "`dtype` must be torch.float16 or torch.bfloat16, got torch.float32",
        ),
        ({"watch_batches": 0, "patience": 0.5}, "`patience` must be at least 1, got 0.5"),
    ],
)
def test_wrong_settings_are_reported(options, words):
    with pytest.raises(UsageError) as caught:
        ramp(**options)
    assert words in str(caught.value)


# -- plans ----------------------------------------------------------------------------------------


def test_a_validation_loss_that_rises_stands_against_the_move_and_falls_back():
    ramp = PrecisionRamp(stable_epochs=2, watch_batches=2, device_type="cpu")
    for loss in (1.0, 1.2, 0.9):  # the second rises: its epoch does not count
        ramp.note_validation(loss)
        ramp.note_epoch()
    assert not ramp.is_on
    ramp.note_validation(0.8)
    ramp.note_epoch()
    assert ramp.precision == "float16 at scale 1024"
    ramp.note_validation(0.81)  # within the tolerance
    for _ in range(2):
        ramp.note_applied()
    assert ramp.precision == "float16 at scale 4096"
    ramp.note_validation(float("nan"))
    assert ramp.precision == "fp32"
    assert ramp.moves[-1].reason == (
        "the validation loss is nan, the best was 0.8; next attempt after 4 stable epochs"
    )
    other = PrecisionRamp(stable_epochs=2, watch_batches=2, device_type="cpu")
    other.load_state_dict(ramp.state_dict())
    other.note_validation(0.9)
    assert other._has_risen


PLAN = [
    {"name": "validate", "steps": 5, "loss_below": 10.0, "limits": {"*.alpha": 0.1}},
    {"name": "continue", "steps": 5},
    {"name": "scale up", "steps": 5, "changes": {"lr": 1.5e-4}},
]


def alpha(value):
    return [("block.alpha", torch.tensor([value]))]


def test_a_plan_passes_stage_by_stage():
    plan = StagedPlan.from_data(PLAN)
    reports = [plan.note(9.0 - i * 0.5, parameters=alpha(0.05)) for i in range(15)]
    assert [r.name for r in reports if r] == ["validate", "continue", "scale up"]
    assert plan.has_passed and plan.current is None
    assert plan.stages[2].changes == {"lr": 1.5e-4}


@pytest.mark.parametrize(
    ("losses", "size", "healthy", "reason"),
    [
        ([9, 8, 7, 6, 5], 0.5, True, "block.alpha has reached 0.5, the limit is 0.1"),
        ([12, 11.9, 11.8, 11.7, 11.6], 0.05, True, "the loss is 11.6, wanted is below 10"),
        ([5, 6, 7, 8, 9], 0.05, True, "the loss went from 5 to 9 instead of down"),
        ([9], 0.05, False, "1 incidents, allowed are 0"),
        ([float("nan")] * 5, 0.05, True, "no finite loss was seen"),
    ],
)
def test_a_stage_fails_for_a_reason(losses, size, healthy, reason):
    plan = StagedPlan.from_data(PLAN)
    report = [plan.note(x, is_healthy=healthy, parameters=alpha(size)) for x in losses][-1]
    assert report.status == "failed" and reason in report.reasons
    assert [r.status for r in plan.reports()] == ["failed", "waiting", "waiting"]
    assert plan.note(1.0) is None and not plan.has_passed


def test_a_plan_resumes():
    plan, other = StagedPlan.from_data(PLAN), StagedPlan.from_data(PLAN)
    for i in range(7):
        plan.note(9.0 - i, parameters=alpha(0.05))
    other.load_state_dict(plan.state_dict())
    assert other.reports() == plan.reports()
    assert [r.status for r in other.reports()] == ["passed", "running", "waiting"]
    with pytest.raises(UsageError, match="this one"):
        StagedPlan([Stage(name="x", steps=1)]).load_state_dict(plan.state_dict())


def test_unknown_keys_of_a_stage_are_reported():
    with pytest.raises(UsageError, match="stage 0: unknown keys stepz; known: changes"):
        StagedPlan.from_data([{"name": "a", "stepz": 3}])
