"""What the docs say of a code is what its page says."""

import re

import pytest
from tests.docs.blocks import DOCS
from tests.docs.tables import pages, with_tables

from stayfinite import codes


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_a_table_of_codes_is_that_of_the_source(page):
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text), "try: python -m tests.docs.tables"


def test_every_check_that_the_docs_name_exists():
    known = {c.name for c in codes.all_codes("check")}
    groups = "|".join(sorted({name.partition("/")[0] for name in known}))
    named = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(rf"`((?:{groups})/[a-z0-9-]+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert named - known - {"data/train"} == set()
