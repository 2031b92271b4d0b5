"""`run` is read without the library of the command line: both must say the same."""

from dataclasses import fields

import pytest
import typer.main
from tests.launch import alone

from stayfinite.cli.app import app
from stayfinite.cli.run_options import RunOptions, prepare, read
from stayfinite.errors import UsageError

COMMAND = typer.main.get_command(app).commands["run"]


def asked(args, monkeypatch):
    """What the library makes of the same words."""
    seen = []
    monkeypatch.setattr("stayfinite.cli.run.prepare", lambda given: lambda: seen.append(given) or 0)
    COMMAND.main(args=list(args), standalone_mode=False)
    return seen[0]


def test_each_option_is_known_to_both_with_the_same_default():
    theirs = {p.name: p for p in COMMAND.params if p.name not in ("help", "budget")}
    assert theirs.keys() == {f.name for f in fields(RunOptions)}
    for name, param in theirs.items():
        default = param.default
        assert (() if isinstance(default, list) else default) in (getattr(RunOptions, name), None)


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "train.py --help -m x",
        "-m pkg.train --policy raise",
        "--module=pkg.train -m 3",
        "--policy skip --on-spike=raise --max-skips 7 --overhead 0.1 train.py",
        "--budget 0.1 train.py",
        "--deferred --no-resume-check --no-diagnose --show-patches --store-args train.py -- x",
        "--resume-check --diagnose --replay off --run-dir out train.py",
        "--without saves --without loaders --sink logging --on-incident cat train.py",
        "--policy=skip:3,rollback:2:lr=0.5 train.py",
    ],
)  # fmt: skip
def test_the_usual_words_are_read_as_the_library_reads_them(line, monkeypatch):
    found = read(line.split())
    assert found is not None
    assert found == asked(line.split(), monkeypatch)


@pytest.mark.parametrize(
    "line", ["--help", "--max-skips many train.py", "--polcy skip train.py", "--policy", "-- train.py",
             "--no-deferred train.py", "-mpkg.train", "--target x", "--max_skips 3 train.py"],
)  # fmt: skip
def test_what_is_unusual_or_wrong_is_left_to_the_library(line):
    assert read(line.split()) is None


def test_a_wrong_setting_is_a_usage_error_before_anything_runs():
    with pytest.raises(UsageError, match="give the script to run"):
        prepare(RunOptions())
    with pytest.raises(UsageError, match="polic"):
        prepare(RunOptions(target=("train.py",), policy="sometimes"))


def test_a_healthy_run_never_imports_the_library(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sorted({'typer', 'rich', 'yaml'} & set(sys.modules)))")
    done = alone(["-m", "stayfinite", "run", script.name], tmp_path)
    assert done.out == "[]\n"


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "log.txt").write_text("")
    with pytest.raises(UsageError, match=r"log.txt is a file; give a folder"):
        prepare(RunOptions(target=("train.py",), run_dir=tmp_path / "log.txt"))
