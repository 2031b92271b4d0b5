"""Healthy trainings pass: no fail, and at most one warning each, over all groups."""

import pytest
from tests.preflight.healthy import TARGETS

from stayfinite.preflight.runner_check import check


def assert_ready(report):
    problems = [
        f"{f.status} {f.check} {f.subject}: {f.value}" for f in report.findings if f.is_problem
    ]
    assert report.count("fail") == 0, problems
    assert report.count("warn") <= 1, problems
    assert not report.skipped
    assert report.count("pass") > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_healthy_training_passes_every_group(name):
    assert_ready(check(TARGETS[name]))


def test_healthy_mlp_passes_what_probes_it():
    report = check(TARGETS["mlp"], only=["init,forward,edges,precision,stability"])
    assert report.verdict == "ready"
    assert_ready(report)
