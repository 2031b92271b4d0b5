"""Where codes are registered and looked up."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import UsageError

__all__ = ["KINDS", "Code", "Kind", "all_codes", "lookup", "nearest", "register"]

Kind = Literal["cause", "lint", "scan", "check"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Code:
    """A code, what it means, and which part of stayfinite uses it."""

    name: str
    kind: Kind
    definition: str
    details: tuple[tuple[str, str], ...] = ()
    """(heading, text), in the order of its page: how it shows, how it is proved, what to do."""
    related: tuple[str, ...] = ()
    """Codes of the same trouble elsewhere: the lint rule that sees a cause in the source, and so on."""

    def detail(self, heading: str) -> str:
        """The text under a heading; "" where the code has none."""
        return dict(self.details).get(heading, "")


_REGISTRY: dict[str, Code] = {}


def register(
    name: str,
    kind: Kind,
    definition: str,
    details: Mapping[str, str] | None = None,
    *,
    related: tuple[str, ...] = (),
) -> Code:
    """Add a code; a name that is taken, or a definition that is empty, is rejected here."""
    if not name or name != name.strip() or " " in name:
        raise UsageError(f"a code is one word without spaces, got {name!r}")
    if not definition.strip():
        raise UsageError(f"code {name!r} needs a definition")
    if name in _REGISTRY:
        raise UsageError(f"code {name!r} is already registered: {_REGISTRY[name].definition}")
    code = Code(name, kind, definition, tuple((details or {}).items()), related)
    _REGISTRY[name] = code
    return code


def lookup(name: str) -> Code:
    """The code of that name; an unknown one lists all that there are.

    >>> lookup("log_of_zero").kind
    'cause'
    """
    try:
        return _REGISTRY[name]
    except KeyError:
        raise UsageError(f"unknown code {name!r}; known: {', '.join(sorted(_REGISTRY))}") from None


def nearest(name: str, number: int = 3) -> list[str]:
    """The codes that may have been meant by a name, the likeliest first.

    A check may be given without its group, as its table shows it; case, `-` and `_` do not matter. A
    word that is like no name is looked for in the definitions.

    >>> nearest("log_of_zeros")[0], nearest("sf110")[0], nearest("blank")[0]
    ('log_of_zero', 'SF111', 'edges/blank')
    """
    wanted = _plain(name)
    scores = {code: _likeness(wanted, code) for code in _REGISTRY}
    likely = sorted((c for c in scores if scores[c] > 0.6), key=lambda c: -scores[c])
    words = [
        c.name for c in _REGISTRY.values() if len(wanted) > 2 and wanted in _plain(c.definition)
    ]
    return (likely or words)[:number]


def _likeness(wanted: str, code: str) -> float:
    """From 0 to beyond 1: the same name, the same without its group, the same beginning, alike."""
    whole, tail = _plain(code), _plain(code.rpartition("/")[2])
    if wanted in (whole, tail):
        return 3.0 if wanted == whole else 2.0
    if len(wanted) > 3 and wanted in whole:
        return 1.0
    same = next((i for i, (a, b) in enumerate(zip(wanted, whole)) if a != b), len(wanted))
    begin = same / max(len(wanted), len(whole), 1)
    return difflib.SequenceMatcher(None, wanted, whole).ratio() + 0.2 * begin


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def all_codes(kind: Kind | None = None) -> list[Code]:
    """All codes, or those of one kind, in the order of registration."""
    return [c for c in _REGISTRY.values() if kind is None or c.kind == kind]
