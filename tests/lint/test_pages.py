"""Every code has a page: the same words as the code, and an example that runs and is flagged."""

import pathlib
import re

import pytest

from stayfinite import codes, remedies
from stayfinite.lint import Settings, check_source
from stayfinite.lint.advice import ADVICE

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "lint"
CODES = codes.all_codes("lint")


def read(code):
    text = (PAGES / f"{code.name}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    return text, example


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_a_page_says_what_the_code_says(code):
    text, _ = read(code)
    assert text.startswith(f"# {code.name}\n\n{code.definition}\n")
    assert ADVICE[code.name] in text


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_the_example_of_a_page_is_flagged_in_the_tier_that_it_states(code):
    text, example = read(code)
    is_pedantic = "`--pedantic` only" in text
    found = [
        f for f in check_source(example, "page.py", Settings(pedantic=True)) if f.code == code.name
    ]
    assert any(f.is_default != is_pedantic for f in found)
    titles = {f.remedy.title for f in found if f.remedy}
    named = {r.title for r in remedies.CATALOGUE.values() if f"`--fix`: {r.title};" in text}
    assert titles == named


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_the_example_of_a_page_runs(code):
    _, example = read(code)
    exec(compile(example, f"{code.name}.md", "exec"), {"__name__": "page"})


def test_the_list_of_codes_is_complete():
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    missing = [c.name for c in CODES if f"[{c.name}]({c.name}.md)" not in text]
    assert not missing
    assert not [c.name for c in CODES if c.definition not in text]
