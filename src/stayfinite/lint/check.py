"""Lints one text: parse, analyze, apply suppressions, report findings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .. import remedies
from ..codes import all_codes
from ..errors import UsageError
from ..parsing import parsed
from .context import Hit
from .reader import FileReader
from .records import Finding
from .settings import Settings

__all__ = ["ADVICE", "check_source"]

ADVICE = {code.name: code.detail("Write instead") for code in all_codes("lint")}
"""One line of advice for each code."""

_IGNORE = re.compile(r"#\s*stayfinite:\s*ignore(?:\[([A-Za-z0-9_,\s]*)\])?")
_WORDS = ("torch", ".backward(", "optimizer")


def check_source(
    text: str, path: str = "<text>", settings: Settings | None = None
) -> list[Finding]:
    """Lint a text; raises `UsageError` if it cannot be parsed.

    >>> found = check_source("import torch\\ny = torch.log(torch.sigmoid(x))\\n")
    >>> [(f.code, f.line) for f in found]
    [('SF101', 2)]
    """
    settings = settings or Settings()
    if not any(word in text for word in _WORDS):
        return []
    tree = _parsed(text)
    try:
        hits = FileReader(tree).read()
    except RecursionError:
        raise UsageError("nested too deeply to be read") from None
    lines = text.splitlines()
    source = remedies.Source(text, tree)
    return [
        _finding(hit, path, source)
        for hit in hits
        if settings.wants(hit.code, hit.is_default) and not _is_ignored(hit, lines)
    ]


def _parsed(text: str) -> ast.Module:
    try:
        return parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        line = getattr(e, "lineno", None)
        where = f"line {line}: " if line else ""
        raise UsageError(f"{where}{getattr(e, 'msg', None) or e}") from None


def _is_ignored(hit: Hit, lines: list[str]) -> bool:
    """Whether a comment on one of its lines suppresses it."""
    first = getattr(hit.node, "lineno", 1)
    last = getattr(hit.node, "end_lineno", first) or first
    comments = _ignored_codes(lines[first - 1 : last])
    return any(not codes or hit.code in codes for codes in comments)


def _ignored_codes(lines: list[str]) -> Iterator[set[str]]:
    """The codes of each suppression comment; an empty set means all of them.

    >>> list(_ignored_codes(["y = x.log()  # stayfinite: ignore[SF101, SF102]"])) == [{"SF101", "SF102"}]
    True
    """
    for line in lines:
        found = _IGNORE.search(line)
        if found is not None:
            yield {code.strip() for code in (found[1] or "").split(",") if code.strip()}


def _finding(hit: Hit, path: str, source: remedies.Source) -> Finding:
    start, end = source.span(hit.node)
    line = getattr(hit.node, "lineno", 1)
    end_line = getattr(hit.node, "end_lineno", line)
    remedy = remedies.find(source, hit.node, hit.remedy) if hit.remedy else None
    return Finding(
        code=hit.code,
        path=path,
        line=line,
        column=start - source.line_start(line) + 1,
        end_line=end_line,
        end_column=end - source.line_start(end_line) + 1,
        message=hit.message,
        advice=ADVICE[hit.code],
        source=source.lines[line - 1].strip(),
        is_default=hit.is_default,
        remedy=remedy,
    )
