"""Random faults leave nothing behind; the judgment itself would see it if they did."""

import pytest
import torch
from tests import campaign
from tests.faults.training import Fault, batches, loop, make


def test_a_few_random_faults_leave_no_trace():
    _, bad = campaign.campaign(25, seed=3)
    assert bad == []


@pytest.mark.slow
def test_many_random_faults_leave_no_trace():
    """More of them: python -m tests.campaign --count 500."""
    _, bad = campaign.campaign(75, seed=0)
    assert [f"{case}: {wrong}" for case, wrong in bad] == []


def test_the_campaign_draws_everything():
    rng = campaign.random.Random(0)
    cases = [campaign.draw(rng) for _ in range(520)]
    assert {c.fault.place for c in cases} == set(campaign.PLACES)
    assert {(c.fault.value, c.fault.precision) for c in cases} == {
        (v, p) for v in campaign.VALUES for p in campaign.PRECISIONS
    }
    assert {(c.policy, c.form) for c in cases} == {
        (p, f) for p in campaign.POLICIES for f in campaign.FORMS
    }
    assert {c.fault.at for c in cases} == set(range(campaign.NUM_BATCHES))
    again = campaign.random.Random(0)
    assert [campaign.draw(again) for _ in range(520)] == cases


@pytest.mark.parametrize("place", ["input", "gradient", "parameter", "buffer", "optimizer_state"])
def test_without_a_guard_the_campaign_would_see_it(place):
    fault = Fault(place=place, value="nan")
    parts = make(fault)
    loop(batches(fault), *parts)
    found = campaign.remembered(*parts)
    assert any(torch.is_tensor(v) and v.isnan().any() for v in found.values())
    assert campaign.differences(found, fault, {fault.at}) != []


def test_one_step_too_many_or_too_few_would_be_seen():
    fault = Fault(place="loss", value="nan")
    parts = make(fault)
    loop([b for i, b in enumerate(batches(fault)) if i not in (4, fault.at)], *parts)
    found = campaign.remembered(*parts)
    assert campaign.differences(found, fault, {4, fault.at}) == []
    assert campaign.differences(found, fault, {fault.at}) != []
    assert campaign.differences(found, fault, {3, 4, fault.at}) != []
