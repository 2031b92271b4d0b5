"""Every defect that is planted in environment, config and data is found, and named."""

import pytest
import tests.preflight.planted_data  # noqa: F401 - plants more
import torch
from tests.preflight.healthy import TARGETS
from tests.preflight.planted_core import PLANTED

from stayfinite.preflight.runner.check import check

GROUPS = ("environment", "config", "data")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: f"{p.group}-{p.name}".replace(" ", "_"))
def test_planted_defect_is_found_and_named(planted):
    found = planted.find()
    hits = [f for f in found if f.check == planted.check and planted.where in f.subject]
    problems = [f"{f.status} {f.check} | {f.subject} | {f.value}" for f in found if f.is_problem]
    assert hits, problems
    assert hits[0].status == planted.status, problems
    assert hits[0].action


def test_there_are_enough_of_them():
    assert len(PLANTED) >= 60
    assert all(sum(p.group == g for p in PLANTED) >= 15 for g in GROUPS)


def test_a_healthy_training_passes_the_same_groups():
    report = check(TARGETS["mlp"], only=GROUPS)
    assert not [f for f in report.findings if f.is_problem]
    assert not report.skipped
    assert {f.group for f in report.findings} == set(GROUPS)


def test_switches_that_are_really_on_are_seen():
    anomaly, precision = torch.is_anomaly_enabled(), torch.get_float32_matmul_precision()
    torch.autograd.set_detect_anomaly(True)
    torch.set_float32_matmul_precision("medium")
    try:
        report = check(TARGETS["mlp"], only=["environment"])
    finally:
        torch.autograd.set_detect_anomaly(anomaly)
        torch.set_float32_matmul_precision(precision)
    warned = {f.check for f in report.findings if f.is_problem}
    assert warned == {"environment/anomaly", "environment/tf32"}
