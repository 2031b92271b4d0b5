"""A source change as text edits with a reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Edit", "Remedy", "apply", "unified_diff"]


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A concrete change of a source."""

    name: str
    title: str
    why: str
    line: int
    edits: tuple[Edit, ...]
    is_equivalent: bool = True
    """Whether healthy values give the same result as before."""


def apply(text: str, remedies: Iterable[Remedy]) -> tuple[str, tuple[Remedy, ...]]:
    """Apply changes; returns the text and the applied ones. A change that overlaps an earlier one is not applied.

    >>> made = Remedy(name="x", title="", why="", line=1, edits=(Edit(0, 3, "safe_log"),))
    >>> apply("log(p)", [made])[0]
    'safe_log(p)'
    """
    taken: list[Edit] = []
    done = []
    for remedy in sorted(remedies, key=lambda r: r.edits):
        new = [e for e in remedy.edits if e not in taken]  # two changes may insert the same line
        if not any(_overlap(a, b) for a in new for b in taken):
            taken += new
            done.append(remedy)
    for edit in sorted(taken, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, tuple(done)


def _overlap(a: Edit, b: Edit) -> bool:
    if a.start == a.end == b.start == b.end:
        return True  # two insertions at one place have no defined order
    return a.start < b.end and b.start < a.end


def unified_diff(path: str, before: str, after: str) -> str:
    """The change as a patch for `git apply`; empty without a change."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path}",
        f"b/{path}",
    )
    made = []
    for line in lines:
        made.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(made)
