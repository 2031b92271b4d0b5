"""The page on safe numerics and the package say the same."""

import inspect
import pathlib
import re

import pytest

import stayfinite.numerics as sf

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "NUMERICS.md").read_text(encoding="utf-8")
NAMES = [name for name in sf.__all__ if name not in ("CtcOutput", "TemiOutput")]


def test_every_export_exists_and_is_sorted():
    assert list(sf.__all__) == sorted(sf.__all__)
    assert all(getattr(sf, name) is not None for name in sf.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_is_on_the_page_and_says_what_it_prevents(name):
    assert re.search(rf"`{name}\b", PAGE), f"{name} is missing in docs/NUMERICS.md"
    doc = inspect.getdoc(getattr(sf, name))
    assert "Prevents: " in doc and ">>> " in doc, (
        f"{name}: no failure or no example in its docstring"
    )


def test_the_table_of_remedies_names_only_what_exists():
    table = PAGE.split("## What is promised")[0]
    remedies = [row.split("|")[3] for row in table.splitlines() if row.startswith("| `")]
    assert len(remedies) > 30
    named = {m for cell in remedies for m in re.findall(r"`([A-Za-z_0-9]+)", cell)}
    assert named and named <= set(sf.__all__), named - set(sf.__all__)
