"""Each broken example has its true line among those that can fail, before its first real step."""

import shutil

import pytest
import yaml
from tests.import_graph import SRC

from stayfinite.preflight.capture.script import check_script
from stayfinite.preflight.target import ScriptTarget

pytestmark = pytest.mark.usefixtures("shared_forks")

EXAMPLES = SRC.parent / "examples"
WHOLE = [
    pytest.param(n, marks=pytest.mark.whole) for n in ("lstm_market", "mmdit_dlm", "restran_mhc")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mmgcn", "temi", *WHOLE])
def test_the_true_line_can_fail(name, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / name)
    expected = yaml.safe_load((EXAMPLES / name / "demo.yaml").read_text())["expect"]["line"]
    report = check_script(ScriptTarget("train.py"), only=["proof"])
    found = [f.data["source"] for f in report.of_group("proof") if f.check == "proof/can-fail"]
    assert any(expected in source for source in found), found
