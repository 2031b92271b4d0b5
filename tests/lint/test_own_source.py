"""Our own source is clean by its own rules."""

import pathlib

from stayfinite.lint import lint_paths


def test_lint_finds_nothing_in_its_own_house():
    report = lint_paths([pathlib.Path(__file__).parents[2] / "src"], jobs=1)
    assert [(f.path, f.line, f.code) for f in report.findings] == []
    assert report.unreadable == ()
