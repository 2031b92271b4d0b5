"""A late failure is predicted from the batches before it, and its fixed twin is let pass."""

import pytest
from clinic.foresight import foresee
from clinic.form import all_cases

CASES = {e.name: e for e in all_cases()}
SAMPLE = ("siamese_duplicate_pair", "empty_document_attention", "linear_warmup_never_stops")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_late_failure_is_predicted_at_its_line_and_its_twin_is_not(name):
    found = foresee(CASES[name])
    assert found.predicted and found.line and found.cause
    twin = foresee(CASES[name], fixed=True)
    assert not twin.executed and not twin.error
