"""Every code of lint has an example that runs and is flagged, and a line in the list."""

import pathlib

import pytest

from stayfinite import codes, remedies
from stayfinite.explain import as_text, page_of
from stayfinite.lint import Settings, check_source
from stayfinite.lint.check import ADVICE

README = pathlib.Path(__file__).parents[2] / "docs" / "lint" / "README.md"
CODES = codes.all_codes("lint")


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_the_example_of_a_page_is_flagged_and_its_page_says_how(code):
    page = page_of(code.name)
    found = [
        f
        for f in check_source(page.example, "page.py", Settings(pedantic=True))
        if f.code == code.name
    ]
    assert found and ADVICE[code.name]
    text = as_text(page, width=1000)
    assert ("`--pedantic` only" in text) == (not any(f.is_default for f in found))
    titles = {f.remedy.title for f in found if f.remedy}
    assert titles == {
        r.title for r in remedies.CATALOGUE.values() if f"`--fix`: {r.title};" in text
    }


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_the_example_of_a_page_runs(code):
    example = page_of(code.name).example
    exec(compile(example, f"{code.name}.py", "exec"), {"__name__": "page"})


def test_the_list_of_codes_is_complete():
    text = README.read_text(encoding="utf-8")
    missing = [c.name for c in CODES if f"[{c.name}](../codes/lint/{c.name}.md)" not in text]
    assert not missing
    assert not [c.name for c in CODES if c.definition not in text]
