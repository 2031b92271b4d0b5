"""The README: short, and nothing in it leads nowhere."""

import re

from tests.docs.blocks import README


def test_the_readme_has_at_most_150_lines_and_begins_with_the_install():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.S)
    assert blocks[0].startswith("pip install stayfinite\n")
    assert "make demo" in text and "make test" in text


def test_every_file_that_the_readme_links_to_exists():
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []
