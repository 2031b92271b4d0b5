"""The command line: help without torch, and a clear word for every wrong call."""

import subprocess
import sys

import pytest
import typer
from tests.launch import alone, forked

from stayfinite import __version__
from stayfinite.cli.app import app


def stayfinite(*args, cwd=None):
    return forked(["-m", "stayfinite", *args], cwd)


def test_help_lists_the_commands_without_importing_torch(tmp_path):
    probe = (
        "import sys\n"
        "from stayfinite.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as e:\n    print('code', e.code)\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = alone(["-c", probe], tmp_path)
    lines = done.out.splitlines()
    assert lines[-2:] == ["code 0", "False False"]
    commands = {t.split()[0] for t in lines if t.startswith("  ") and t.split()}
    assert {"run", "demo"} <= commands


@pytest.mark.parametrize("command", ["run", "demo"])
def test_each_command_has_help_without_torch(command, tmp_path):
    probe = (
        "import sys\n"
        "from stayfinite.cli import main\n"
        f"try:\n    main([{command!r}, '--help'])\n"
        "except SystemExit as e:\n    print('code', e.code)\n"
        "print('torch' in sys.modules)\n"
    )
    assert alone(["-c", probe], tmp_path).out.splitlines()[-2:] == ["code 0", "False"]


def test_each_option_says_what_its_value_is():
    """A word such as FILE or SECONDS, where the command line's own library would say `<path>` or `<float>`."""
    commands = typer.main.get_command(app).commands
    unnamed = [
        f"{name} {option.opts[0]}"
        for name, command in commands.items()
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag and option.metavar is None
    ]
    assert unnamed == []


def test_version(tmp_path):
    done = stayfinite("--version", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, f"stayfinite {__version__}\n", "")


def test_the_installed_command_is_the_same(tmp_path):
    command = sys.executable.rpartition("/")[0] + "/stayfinite"
    out = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"stayfinite {__version__}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "give the script to run: stayfinite run train.py [ARGS]..."),
        (["run", "--policy", "ignore", "x.py"], "unknown policy 'ignore'; choose one of: "),
        (["run", "--overhead", "7", "x.py"], "`--overhead` must be above 0 and at most 1, got 7.0"),
        (["run", "--max-skips", "0", "x.py"], "`max_consecutive_skips` must be a whole number"),
        (["run", "--nonsense", "x.py"], "No such option"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(args, message, tmp_path):
    done = stayfinite(*args, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_missing_script(tmp_path):
    """As `python nowhere.py` says it, with the same exit code."""
    done = stayfinite("run", "nowhere.py", cwd=tmp_path)
    plain = alone(["nowhere.py"], tmp_path)
    assert done.code == plain.code == 2
    assert "can't open file 'nowhere.py': No such file or directory" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_folder_in_place_of_a_script(tmp_path):
    (tmp_path / "d").mkdir()
    done = stayfinite("run", "d", cwd=tmp_path)
    assert done.code != 0
    assert "d" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_missing_module(tmp_path):
    done = stayfinite("run", "-m", "no_such_module", cwd=tmp_path)
    assert done.code == 1
    assert "No module named 'no_such_module'" in done.err or "No module named no_such_module" in (
        done.err
    )
    assert "stayfinite/" not in done.err, "our own frames are nobody's business"


@pytest.mark.parametrize(
    ("given", "module", "words"),
    [
        (["a.py"], None, ["a.py"]),
        (["a.py", "-m", "b"], None, ["a.py", "-m", "b"]),
        (["--deferred", "a.py", "--help"], None, ["a.py", "--help"]),
        (["--run-dir", "d", "a.py", "--run-dir", "e"], None, ["a.py", "--run-dir", "e"]),
        (["--run-dir=d", "a.py", "-x"], None, ["a.py", "-x"]),
        (["-m", "p.q", "--policy", "x"], "p.q", ["--policy", "x"]),
        (["--module", "p", "a"], "p", ["a"]),
        (["--", "a.py", "--", "b"], None, ["a.py", "--", "b"]),
        (["--without", "saves", "--replay", "off", "a.py", "--off"], None, ["a.py", "--off"]),
    ],
)
def test_the_scripts_arguments_stay_its_own(given, module, words):
    command = typer.main.get_command(app).commands["run"]
    found = command.make_context("run", list(given)).params
    assert found["module"] == module
    assert list(found["target"]) == words
