"""`stayfinite lint` from outside: output, exit codes, messages."""

import json
import subprocess
import sys

BAD = "import torch\ny = torch.log(torch.sigmoid(x))\n"


def run(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "stayfinite", "lint", *args], capture_output=True, text=True, cwd=cwd
    )


def test_a_clean_file_exits_with_0(tmp_path):
    (tmp_path / "train.py").write_text("import torch\ny = torch.zeros(3)\n")
    out = run(".", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout.startswith("nothing found in 1 file, 3 lines")


def test_findings_exit_with_1_and_can_be_repaired(tmp_path):
    (tmp_path / "train.py").write_text(BAD)
    out = run("train.py", cwd=tmp_path)
    assert out.returncode == 1
    assert out.stdout.startswith("train.py:2:5: SF101 ")
    assert run("--fix", "train.py", cwd=tmp_path).returncode == 0
    assert run("train.py", cwd=tmp_path).returncode == 0


def test_wrong_usage_exits_with_2_in_words(tmp_path):
    (tmp_path / "train.py").write_text(BAD)
    for args, message in [
        ([], "nothing to check"),
        (["nowhere"], "no such file or folder: nowhere"),
        (["--format", "xml", "."], "`--format` must be one of text, json, sarif, github"),
        (["--select", "SF9", "."], "unknown code 'SF9'; known: SF101"),
        (["--jobs", "0", "."], "`--jobs` must be at least 1, got 0"),
    ]:
        out = run(*args, cwd=tmp_path)
        assert out.returncode == 2
        assert message in out.stderr and "Traceback" not in out.stderr


def test_a_named_file_that_cannot_be_parsed_exits_with_2(tmp_path):
    (tmp_path / "old.py").write_text("import torch\nprint 'x'\n")
    out = run("old.py", cwd=tmp_path)
    assert out.returncode == 2 and "could not read old.py: line 2" in out.stderr
    assert run(".", cwd=tmp_path).returncode == 0


def test_stdout_of_a_format_is_that_format_alone(tmp_path):
    (tmp_path / "train.py").write_text(BAD)
    for form in ("json", "sarif"):
        out = run("--format", form, ".", cwd=tmp_path)
        assert out.returncode == 1
        json.loads(out.stdout)
        assert "1 found" in out.stderr


def test_codes_may_be_given_with_commas(tmp_path):
    (tmp_path / "train.py").write_text(BAD)
    assert run("--ignore", "SF101,SF102", ".", cwd=tmp_path).returncode == 0
