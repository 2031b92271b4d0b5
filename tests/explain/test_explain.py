"""One page for every code, from one source: in the terminal, as JSON, in the documentation."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stayfinite import codes
from stayfinite.cli.app import app
from stayfinite.explain import as_markdown, as_text, page_of
from stayfinite.preflight.records import ALL_GROUPS

SRC = pathlib.Path(__file__).parents[2] / "src" / "stayfinite"
GROUPS = "|".join((*ALL_GROUPS, "loss", "gradients"))


def run(*args, columns="88"):
    return CliRunner().invoke(app, ["explain", *args], env={"COLUMNS": columns})


@pytest.mark.parametrize("kind", codes.KINDS)
def test_every_page_says_what_the_code_is_and_what_to_do(kind):
    for code in codes.all_codes(kind):
        page = page_of(code.name)
        assert page.definition == code.definition and page.kind == kind
        has_limits = any(s.rows for s in page.sections)
        assert has_limits or len(page.sections) >= 1, f"{code.name} is a definition and no more"
        text, markdown = as_text(page), as_markdown(page, lambda name: name)
        assert max(map(len, text.splitlines())) <= 88 or page.example
        for section in page.sections:
            assert section.heading.lower() in text and f"## {section.heading}" in markdown
            assert " ".join(section.text.split()) in " ".join(text.split())


def test_related_codes_exist_and_lead_back():
    for code in codes.all_codes():
        for name in code.related:
            assert code.name in dict(page_of(name).related)


def names_in(folder, function=None):
    """Constants that look like checks; with `function`, its first arguments."""
    for path in sorted((SRC / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if function and isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "id", "")
                first = node.args[0]
                if called == function and isinstance(first, ast.Constant):
                    yield first.value
            elif not function and isinstance(node, ast.Constant):
                yield from re.findall(rf"^(?:{GROUPS})/[a-z0-9-]+$", str(node.value))


def test_every_check_that_the_source_names_has_a_page_and_no_page_is_of_a_check_that_is_gone():
    from stayfinite.preflight.config.rules import RULES as CONFIG
    from stayfinite.preflight.environment.rules import RULES as ENVIRONMENT
    from stayfinite.preflight.precision.group import _NAMES
    from stayfinite.preflight.resources import _NAMES as MEASURED

    named = {n for n in names_in("preflight") if n != "init/nan"}  # that one is a doctest's
    named |= {f"config/{rule.name}" for rule in CONFIG}
    named |= {f"environment/{name}" for name in ENVIRONMENT}
    named |= {f"precision/{short}" for short in _NAMES}
    named |= {f"resources/{short}" for short in MEASURED}
    for folder in ("foresee", "preflight"):
        named |= {f"edges/{family}" for family in names_in(folder, "Candidate")}
    known = {c.name for c in codes.all_codes("check")}
    assert (named - known, known - named) == (set(), set())


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("log_of_zero", "log_of_zero"),
        ("LOG-OF-ZERO", "log_of_zero"),
        ("sf101", "SF101"),
        ("edges/blank", "edges/blank"),
        ("blank", "edges/blank"),
        ("nonfinite_tensor", "nonfinite_tensor"),
    ],
)
def test_a_code_is_found_as_it_is_shown_somewhere(given, code):
    result = run(given, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["code"] == code


def test_an_unknown_code_is_answered_with_the_nearest_ones():
    result = run("log_of_zeros")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unknown code 'log_of_zeros'; did you mean log_of_zero?\n"
        "try: stayfinite explain   (lists all codes)\n"
    )
    several = run("finite").stderr
    assert several.startswith("error: 'finite' is several codes: data/finite, init/finite")
    assert "no code is like it" in run("xyzzy").stderr


def test_without_a_code_all_are_listed_or_those_of_a_kind():
    listed = run().stdout
    assert all(f"  {c.name} " in listed for c in codes.all_codes())
    scans = run("--kind", "scan").stdout
    assert "zip_bomb" in scans and "SF101" not in scans
    rows = json.loads(run("--json").stdout)
    assert [r["code"] for r in rows] == [c.name for c in codes.all_codes()]
    assert "must be one of cause, lint, scan, check" in run("--kind", "x").stderr


def test_the_page_fits_a_narrow_terminal():
    lines = run("fully_masked_row", columns="50").stdout.splitlines()
    assert max(map(len, lines)) <= 50


def test_an_explanation_needs_neither_torch_nor_rich():
    probe = (
        "from stayfinite.explain import as_text, page_of, listing\n"
        "as_text(page_of('SF101')), as_text(page_of('config/lr')), listing()\n"
        "import sys\nprint([m for m in ('torch', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
