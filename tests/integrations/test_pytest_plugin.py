"""The plugin in a real pytest of its own, found by its entry point."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integrations.watched import line_of

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SAMPLES = Path(__file__).parent / "scripts"
SOME = SAMPLES / "some_tests.py"
PAGE = (ROOT / "docs" / "PYTEST.md").read_text(encoding="utf-8")


def run_pytest(folder, *args):
    """With the entry point of pyproject.toml, as an installed package has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["entry-points"]["pytest11"]
    info = folder / "site" / "stayfinite_entry-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stayfinite-entry\nVersion: 0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in named.items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{lines}\n")
    for sample in SAMPLES.glob("*_tests.py"):
        shutil.copy(sample, folder)
    path = os.pathsep.join([str(ROOT / "src"), str(folder / "site")])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-rA", "--tb=short", *args],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    code = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    (folder / "test_page.py").write_text(code, encoding="utf-8")
    return run_pytest(folder, "--stayfinite", SOME.name, "test_page.py").stdout


def outcome(output, name):
    return re.search(rf"^(PASSED|FAILED) \S*{name}\b", output, re.M)[1]


def section(output, name):
    """What is printed of a test that failed."""
    found = re.search(rf"^_+ (?:\w+\.)?{name} _+\n(.*?)(?=^___|^===)", output, re.M | re.S)
    return found[1]


@pytest.mark.parametrize(
    ("name", "mark", "operator", "cause"),
    [
        ("test_loss", "LOSS", "aten.log", "domain_error"),
        ("test_gradient", "GRADIENT", "SqrtBackward0", "singular_gradient"),
        ("test_parameter", "PARAMETER", "aten.add_", "exploding_gradient"),
        ("test_swallowed", "SWALLOWED", "aten.log", "log_of_zero"),
        (
            "test_random_numbers_are_drawn_again_as_they_were",
            "DRAWN",
            "aten.div",
            "zero_denominator",
        ),
        ("test_unittest", "UNITTEST", "aten.log", "log_of_zero"),
    ],
)
def test_a_test_fails_with_operator_line_and_cause(watched, name, mark, operator, cause):
    assert outcome(watched, name) == "FAILED"
    text = section(watched, name)
    assert operator in text
    assert f"some_tests.py:{line_of(SOME, f'# {mark}')}" in text
    assert f"({cause}); raised" in text


@pytest.mark.parametrize(
    "name",
    [
        "test_healthy",
        "test_masks_are_no_incident",
        "test_about_nan",
    ],
)
def test_healthy_tests_pass(watched, name):
    assert outcome(watched, name) == "PASSED"


def test_the_traceback_ends_in_the_test(watched):
    text = section(watched, "test_loss")
    assert "patches/manager.py" not in text
    assert "torch/_tensor.py" not in text


def test_the_page_shows_what_is_printed(watched):
    shown = PAGE.partition("says (this")[2].split("```")[1].strip("\n")
    assert shown in watched


def test_without_the_option_nothing_is_imported_or_patched(tmp_path):
    done = run_pytest(tmp_path, "unwatched_tests.py")
    assert outcome(done.stdout, "test_torch_is_not_imported") == "PASSED"
    assert outcome(done.stdout, "test_nan_is_nobodys_business") == "PASSED"
    text = section(done.stdout, "test_the_fixture_watches_without_the_option")
    assert "(log_of_zero); raised" in text
