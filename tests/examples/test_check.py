"""Each broken example fails `check` at its true line before its first step, and its repaired twin is ready."""

import shutil

import pytest
from tests.import_graph import SRC

from stayfinite.demo.cases import find
from stayfinite.preflight.capture import rehearsal
from stayfinite.preflight.capture.script import check_script
from stayfinite.preflight.target import ScriptTarget

pytestmark = pytest.mark.usefixtures("shared_forks")

EXAMPLES = SRC.parent / "examples"
WHOLE = [
    pytest.param(n, marks=pytest.mark.whole) for n in ("lstm_market", "mmdit_dlm", "restran_mhc")
]
"""A check takes up to a minute; `python -m benchmarks.guides` checks all of them, too."""
GROUPS = ["config", "data", "edges", "stability"]


@pytest.fixture
def case(request, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path / request.param)
    # Whether the shortened training comes to its end must not depend on how busy the machine is.
    monkeypatch.setattr(rehearsal, "SECONDS", 20.0)
    return find(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mmgcn", "temi", *WHOLE], indirect=True)
def test_broken_example_fails_at_its_line(case):
    report = check_script(ScriptTarget("train.py"), only=GROUPS)
    found = [f for f in report.findings if f.status == "fail" and f.location is not None]
    assert any(case.line in (f.location.source or "") for f in found), found
    assert report.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["temi", WHOLE[1]], indirect=True)
def test_repaired_example_is_ready(case):
    report = check_script(ScriptTarget(case.fixed.name), only=GROUPS)
    assert [f for f in report.findings if f.is_problem] == []
