"""What every example owes to `stayfinite demo` and to its readers."""

import ast

import pytest
from tests.launch import ROOT

from stayfinite.codes import CAUSES
from stayfinite.demo.cases import cases, examples_folder

HOME = ROOT / "examples"
NAMES = ("lstm_market", "mmdit_dlm", "mmgcn", "restran_mhc", "temi")


def test_the_five_trainings_of_the_seeds_are_there():
    assert examples_folder() == HOME
    assert set(cases()) == {"attention", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_promises_what_can_be_found(name):
    case = cases()[name]
    assert case.cause in CAUSES
    sources = [path.read_text() for path in case.sources() if path.suffix == ".py"]
    assert any(case.line in source for source in sources)
    assert case.fixed.name in {path.name for path in case.sources()}


@pytest.mark.parametrize("name", NAMES)
def test_the_broken_training_knows_nothing_of_us(name):
    files = [path for path in (HOME / name).glob("*.py") if "fixed" not in path.name]
    assert HOME / name / "train.py" in files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] == "stayfinite" for n in names), path


@pytest.mark.parametrize("name", NAMES)
def test_its_story_is_shown(name):
    story = (HOME / name / "README.md").read_text()
    assert "stayfinite run" in story
    assert f"stayfinite demo {name}" in story
    assert f"({name}/" in (HOME / "README.md").read_text(), "listed in examples/README.md"
