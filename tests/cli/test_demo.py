"""`stayfinite demo`: the list, the wrong name, and one demo from its first line to its last."""

import shutil

import pytest
from tests.launch import ROOT, alone, forked

from stayfinite.demo import cases as catalogue
from stayfinite.demo.cases import read_case
from stayfinite.demo.show import Show
from stayfinite.errors import UsageError

GOOD = """
title: A toy that breaks.
plain: [--epochs, 2]
fixed: {script: train_fixed.py, args: [--epochs, 3]}
expect: {cause: log_of_zero, line: torch.log(p)}
metric: accuracy
looks: [[scan, results]]
options: [--policy, rollback]
"""


def stayfinite(*args, cwd):
    return forked(["-m", "stayfinite", *args], cwd)


@pytest.fixture
def toy(tmp_path):
    """A folder as an example has it, with scripts that need no torch."""
    folder = tmp_path / "examples" / "toy"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("print('loss nan')")
    (folder / "train_fixed.py").write_text("print('loss 0.1')\nprint('accuracy 0.9')\nprint()")
    (folder / "demo.yaml").write_text(GOOD)
    (folder / "results").mkdir()
    return folder


def test_the_list_has_a_line_for_each_and_needs_no_torch(tmp_path):
    probe = (
        "import sys\n"
        "from stayfinite.cli import main\n"
        "try:\n    main(['demo'])\n"
        "except SystemExit as e:\n    print('code', e.code)\n"
        "print('torch' in sys.modules)\n"
    )
    lines = alone(["-c", probe], tmp_path).out.splitlines()
    assert lines[-2:] == ["code 0", "False"]
    known = catalogue.cases()
    assert "attention" in known
    for name, case in known.items():
        (row,) = [line for line in lines if line.split()[:1] == [name]]
        assert row.endswith(case.title)
        assert len(row) <= 100
    assert list(tmp_path.iterdir()) == [], "a list writes nothing"


def test_an_unknown_name_lists_all_valid_ones(tmp_path):
    done = stayfinite("demo", "elephant", cwd=tmp_path)
    known = ", ".join(catalogue.cases())
    assert (done.code, done.out) == (2, "")
    assert done.err == f"stayfinite demo: unknown demo 'elephant'; choose one of: {known}\n"


def test_a_demo_file_is_read(toy):
    case = read_case(toy / "demo.yaml")
    assert (case.name, case.title) == ("toy", "A toy that breaks.")
    assert (case.args, case.fixed_args) == (("--epochs", "2"), ("--epochs", "3"))
    assert (case.cause, case.line, case.metric) == ("log_of_zero", "torch.log(p)", "accuracy")
    assert case.looks == (("scan", "results"),)
    assert case.options == ("--policy", "rollback")
    names = [path.name for path in case.sources()]
    assert names == ["demo.yaml", "train.py", "train_fixed.py"], "no results of earlier runs"


def test_every_problem_of_a_demo_file_is_reported_at_once(toy):
    (toy / "train.py").unlink()
    (toy / "demo.yaml").write_text("title: 3\nfixed: {script: gone.py}\nexpect: {}\ncolor: red\n")
    with pytest.raises(UsageError) as e:
        read_case(toy / "demo.yaml")
    for problem in (
        "7 problems",
        "unknown key 'color'",
        "`title` must be text, got 3",
        "`metric` must be text, got None",
        "`expect.cause` must be text, got None",
        "`expect.line` must be text, got None",
        "there is no train.py beside it",
        "there is no gone.py beside it",
    ):
        assert problem in str(e.value)


def test_a_metric_that_is_no_pattern(toy):
    (toy / "demo.yaml").write_text(GOOD.replace("metric: accuracy", "metric: accuracy (0"))
    with pytest.raises(UsageError, match="`metric` is no regular expression"):
        read_case(toy / "demo.yaml")


def test_a_file_that_is_no_yaml(toy):
    (toy / "demo.yaml").write_text("title: [")
    with pytest.raises(UsageError, match="is not YAML"):
        read_case(toy / "demo.yaml")


def test_examples_inside_the_package_come_first(toy, tmp_path, monkeypatch):
    package = tmp_path / "site" / "src" / "stayfinite"
    package.mkdir(parents=True)
    monkeypatch.setattr(catalogue, "_PACKAGE", package)
    assert catalogue.examples_folder() is None
    assert list(catalogue.cases()) == ["attention"]
    shutil.copytree(toy.parent, tmp_path / "site" / "examples")
    assert catalogue.examples_folder() == tmp_path / "site" / "examples"
    shutil.copytree(toy.parent, package / "examples")
    assert catalogue.examples_folder() == package / "examples"
    assert list(catalogue.cases()) == ["attention", "toy"]


def test_what_does_not_come_true_is_said(toy, tmp_path, monkeypatch):
    """A training that does not break, is not caught, and is not repaired."""
    (toy / "train.py").write_text("print('loss 0.5')")
    (toy / "train_fixed.py").write_text("print('loss 0.1')")
    said = []
    show = Show(read_case(toy / "demo.yaml"), tmp_path / "out", said.append)
    monkeypatch.setattr(show, "_stayfinite", lambda words, room: said.append(" ".join(words)))
    show.run()
    assert show.incident is None
    first, second, third = show.disappointments
    assert first == "the plain run printed no NaN and no Inf"
    assert second.startswith(
        "no incident says log_of_zero at a line with 'torch.log(p)'; there are 0"
    )
    assert third == "the last line of the repaired run does not show 'accuracy': 'loss 0.1'"
    assert "scan results" in said
    assert "run --run-dir run --policy rollback train.py --epochs 2" in said
    assert "$ python train.py --epochs 2" in said


@pytest.mark.slow
def test_the_shortest_demo_tells_the_whole_story(tmp_path):
    done = stayfinite("demo", "attention", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    before, _, rest = done.out.partition("2. the same file, unchanged, under stayfinite")
    guarded, _, fixed = rest.partition("3. with the fix")
    assert before.count("last loss nan") == 3
    assert "nan" not in guarded.split("attention.py")[-1]
    story, _, summary = fixed.partition("in short")
    assert "accuracy 1.000" in story
    assert "fully_masked_row" in done.err
    assert "caught    step 18: fully_masked_row" in summary
    assert "attention.py:19  weights = F.softmax(scores, dim=-1)" in summary
    shown = {row.split()[0]: row.split()[1] for row in summary.splitlines() if row.strip()}
    assert "fully_masked_row" in (tmp_path / shown["incident"]).read_text()
    assert "<html" in (tmp_path / shown["report"]).read_text()[:200]
    assert [path.name for path in tmp_path.iterdir()] == [".demo"]


def test_a_wheel_brings_the_examples(toy, tmp_path):
    """Built from a copy: the sources of the package, and one example that has been run before."""
    for name in ("src", "setup.py", "MANIFEST.in", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    (toy / "last.pt").write_bytes(b"a checkpoint")
    built = alone(["setup.py", "-q", "build_py", "--build-lib", "lib"], tmp_path)
    assert built.code == 0, built.err
    brought = sorted(path.name for path in (tmp_path / "lib/stayfinite/examples/toy").iterdir())
    assert brought == ["demo.yaml", "train.py", "train_fixed.py"]


def test_a_package_that_a_case_needs_is_named(monkeypatch, capsys):
    from typer.testing import CliRunner

    from stayfinite.cli.app import app
    from stayfinite.demo import cases

    known = cases.importlib.util.find_spec
    monkeypatch.setattr(
        cases.importlib.util, "find_spec", lambda n: None if n == "numpy" else known(n)
    )
    result = CliRunner().invoke(app, ["demo", "mmgcn"])
    assert result.exit_code == 2
    assert "mmgcn needs numpy, not installed here" in result.output
    assert "pip install numpy" in result.output
