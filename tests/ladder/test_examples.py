"""The broken trainings of the examples: the ladder finds the change that their authors found."""

import pathlib
import shutil

import pytest
from tests.ladder.helpers import ladder, tree

from stayfinite.ladder import LadderReport

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def climb(tmp_path, name, *tries):
    """The ladder over a copy, so that a change of any file is the ladder's doing."""
    home = tmp_path / name
    shutil.copytree(EXAMPLES / name, home, ignore=shutil.ignore_patterns("__pycache__"))
    before = tree(tmp_path)
    words = [w for t in tries for w in ("--try", t)]
    done = ladder(tmp_path, "--json", *words, "--", str(home / "train.py"))
    assert done.code == 0, done.err
    assert tree(tmp_path) == before
    return LadderReport.from_json(done.out)


def test_mmgcn_survives_without_mixed_precision(tmp_path):
    report = climb(tmp_path, "mmgcn", "use_amp=false", "lr=0.1x")
    assert [(r.label, r.status) for r in report.rungs] == [
        ("use_amp=false", "survived"),
        ("lr=0.1x", "failed"),
    ]
    assert [c.label for c in report.smallest] == ["use_amp=false"]


@pytest.mark.whole
def test_mmgcn_survives_without_mixed_precision_by_the_usual_ladder(tmp_path):
    """Seed 000: mixed precision off; neither the learning rate nor clipping helps."""
    report = climb(tmp_path, "mmgcn")
    outcomes = {r.label: r.status for r in report.rungs}
    assert [c.label for c in report.smallest] == ["use_amp=false"]
    assert outcomes["lr=0.1x"] == outcomes["stayfinite:clip=1"] == "failed"
    assert next(iter(outcomes)) == "use_amp=false"


@pytest.mark.whole
def test_lstm_market_survives_without_mixed_precision_only(tmp_path):
    """Seed 004: of its six steps the first one, mixed precision off, is the one that helps."""
    tries = ("use_amp=false", "focal_gamma=0", "lr=0.1x")
    report = climb(tmp_path, "lstm_market", *tries)
    assert [(r.label, r.status) for r in report.rungs] == [
        ("use_amp=false", "survived"),
        ("focal_gamma=0", "failed"),
        ("lr=0.1x", "failed"),
    ]
    assert report.baseline.cause == "low_precision_overflow"
