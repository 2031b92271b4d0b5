"""Every case breaks where its truth says, its fixed twin trains, and every control is healthy."""

import collections
import pathlib
import re

import pytest

from clinic import form, verify

CASES = form.all_cases()
CONTROLS = form.all_controls()


@pytest.mark.filterwarnings("ignore:std:UserWarning")  # what a user would see
@pytest.mark.parametrize("entry", CASES, ids=lambda e: e.name)
def test_case_is_as_its_truth_says(entry):
    assert verify.problems(entry) == []


@pytest.mark.parametrize("entry", CONTROLS, ids=lambda e: e.name)
def test_control_is_healthy(entry):
    assert verify.problems(entry) == []


def test_every_cause_has_cases_in_both_splits():
    count = collections.Counter((e.truth.cause, e.truth.split) for e in CASES)
    assert [(c, s) for c in form.CAUSES for s in form.SPLITS if not count[c, s]] == []


def test_cases_know_nothing_of_stayfinite():
    folder = pathlib.Path(form.__file__).parent
    files = [*folder.glob("cases/*.py"), *folder.glob("controls/*.py"), folder / "form.py"]
    files += [folder / "verify.py", folder / "trace.py"]
    pattern = re.compile(r"^\s*(import|from)\s+stayfinite", re.M)
    assert [f.name for f in files if pattern.search(f.read_text(encoding="utf-8"))] == []
