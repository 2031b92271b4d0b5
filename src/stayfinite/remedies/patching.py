"""Reads and applies a unified diff exactly: every line must match at its position."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import UsageError

__all__ = ["Hunk", "Patch", "apply_patch", "read_patch"]

_HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_END = "\\ No newline at end of file"


@dataclass
class Hunk:
    """One changed part of a file: lines with their line ends."""

    start: int
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Patch:
    """The change of one file."""

    path: str
    hunks: tuple[Hunk, ...]


def read_patch(diff: str) -> Patch:
    """The only file that a diff changes, and its change.

    >>> read_patch("--- a/t.py\\n+++ b/t.py\\n@@ -1 +1 @@\\n-x\\n+y\\n").path
    't.py'
    """
    lines = diff.splitlines(keepends=True)
    if len(lines) < 3 or not lines[0].startswith("--- ") or not lines[1].startswith("+++ "):
        raise UsageError("not a diff of one file")
    names = [_name(lines[0], "a/"), _name(lines[1], "b/")]
    if names[0] != names[1]:
        raise UsageError(f"the diff names two files: {names[0]} and {names[1]}")
    hunks: list[Hunk] = []
    for line in lines[2:]:
        head = _HEAD.match(line)
        if head is not None:
            start = int(head.group(1))
            hunks.append(Hunk(start if head.group(2) != "0" else start + 1))
            continue
        if not hunks:
            raise UsageError("the diff has lines before its first hunk")
        _add(hunks[-1], line)
    return Patch(names[1], tuple(hunks))


def _add(hunk: Hunk, line: str) -> None:
    kind, text = line[:1], line[1:]
    if line.startswith(_NO_END):
        return
    if kind not in " +-":
        raise UsageError(f"not a line of a diff: {line[:80]!r}")
    if kind in " -":
        hunk.before.append(text)
    if kind in " +":
        hunk.after.append(text)


def _name(line: str, prefix: str) -> str:
    name = line[4:].split("\t")[0].strip()
    return name.removeprefix(prefix)


def apply_patch(text: str, patch: Patch) -> str:
    """The text with the change applied; raises a UsageError if a line does not match.

    >>> diff = "--- a/t.py\\n+++ b/t.py\\n@@ -1,2 +1,2 @@\\n a\\n-x\\n+y\\n"
    >>> apply_patch("a\\nx\\n", read_patch(diff))
    'a\\ny\\n'
    """
    lines = text.splitlines(keepends=True)
    made: list[str] = []
    at = 0
    for hunk in patch.hunks:
        first = hunk.start - 1
        if first < at or [_bare(x) for x in lines[first : first + len(hunk.before)]] != [
            _bare(x) for x in hunk.before
        ]:
            raise UsageError(f"line {hunk.start} and those behind it are not as the diff has them")
        end = "\r\n" if "\r\n" in text else "\n"
        made += lines[at:first]
        made += [_bare(x) + end for x in hunk.after]
        at = first + len(hunk.before)
    made += lines[at:]
    whole = "".join(made)
    return whole if text.endswith("\n") or not whole.endswith("\n") else whole.rstrip("\r\n")


def _bare(line: str) -> str:
    return line.rstrip("\r\n")
