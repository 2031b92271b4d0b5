"""Renders a page as terminal text, JSON or Markdown."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict

from .. import codes
from .page import Page, Section

__all__ = ["as_json", "as_markdown", "as_text", "listing"]

_SPECIAL = re.compile(r"[*\[\]<>]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_KINDS = {
    "cause": "causes of an incident",
    "lint": "stayfinite lint: unsafe source",
    "scan": "stayfinite scan: checkpoints and data files",
    "check": "stayfinite check: before a run",
}


def as_text(page: Page, width: int = 88) -> str:
    """The page for a terminal of this width."""
    lines = [f"{page.code}: {_wrapped(page.definition, width, len(page.code) + 2)}"]
    lines.append(_wrapped(page.where.replace("`", ""), width, 2, first="  "))
    for section in page.sections:
        lines += ["", section.heading.lower(), *_section_text(section, width)]
    if page.example:
        lines += ["", "example", textwrap.indent(page.example.rstrip(), "  ")]
    if page.related:
        lines += ["", "see also"]
        indent = max(len(name) for name, _ in page.related) + 4
        lines += [
            f"  {name:<{indent - 2}}{_wrapped(text, width, indent, used=indent)}"
            for name, text in page.related
        ]
    return "\n".join(lines) + "\n"


def _section_text(section: Section, width: int) -> Iterator[str]:
    if section.text:
        yield _wrapped(section.text, width, 2, first="  ")
    for who, fine, other, source in section.rows[1:]:
        yield _wrapped(f"{who}: {fine}, else {other} ({source})", width, 4, first="  - ")


def _wrapped(
    text: str, width: int, indent: int, first: str | None = None, used: int | None = None
) -> str:
    """Wrapped text whose first line begins behind what stands there already."""
    begin = " " * (indent if used is None else used) if first is None else first
    filled = textwrap.fill(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * min(indent, 24),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled if first is not None else filled[len(begin) :]


def as_json(page: Page) -> str:
    """The page for programs."""
    return json.dumps(asdict(page), indent=2, ensure_ascii=False) + "\n"


def listing(kind: codes.Kind | None = None) -> str:
    """Every code with its definition, by kind."""
    blocks = []
    for one in codes.KINDS if kind is None else (kind,):
        found = codes.all_codes(one)
        width = max(len(c.name) for c in found)
        rows = [f"  {c.name:<{width}}  {c.definition}" for c in found]
        blocks.append("\n".join([_KINDS[one], *rows]))
    return "\n\n".join(blocks) + "\n"


def as_markdown(page: Page, link: Callable[[str], str]) -> str:
    """The page for the documentation; `link` gives the address of another code's page."""
    parts = [f"# {page.code}\n", f"**{_escaped(page.definition)}**\n", f"*{page.where}*\n"]
    for section in page.sections:
        parts.append(f"## {section.heading}\n")
        if section.text:
            parts.append(f"{_escaped(section.text)}\n")
        if section.rows:
            parts.append(_table(section.rows))
    if page.example:
        parts.append(f"## Example\n\n```python\n{page.example.rstrip()}\n```\n")
    if page.related:
        rows = [f"- [`{name}`]({link(name)}): {_escaped(text)}" for name, text in page.related]
        parts.append("## See also\n\n" + "\n".join(rows) + "\n")
    parts.append(f"In the terminal: `stayfinite explain {page.code}`\n")
    return "\n".join(parts)


def _table(rows: tuple[tuple[str, str, str, str], ...]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(_escaped(c).replace("|", "\\|") for c in cells) + " |"

    return "\n".join([line(rows[0]), "|---" * len(rows[0]) + "|", *map(line, rows[1:])]) + "\n"


def _escaped(text: str) -> str:
    """Markdown outside of `code`: a star or a bracket is itself.

    >>> _escaped("0 * inf in `a*c`")
    '0 \\\\* inf in `a*c`'
    """
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        pieces[i] = _SPECIAL.sub(r"\\\g<0>", pieces[i])
    return "`".join(pieces)
