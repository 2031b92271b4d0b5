"""A share of the fuzzing of reports; `python -m tests.report.fuzz` does more."""

import pytest
from tests.report import fuzz


def test_some_mutants_of_incidents_and_journals():
    assert fuzz.run(40, seed=7) == []


@pytest.mark.slow
def test_many_mutants_of_incidents_and_journals():
    assert fuzz.run(200, seed=11) == []
