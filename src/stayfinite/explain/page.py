"""A code's page as a record: the text in `codes/`, plus examples from lint and limits from the config rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import codes
from ..errors import UsageError
from ..lint import Settings, check_source
from ..preflight.config.rules import RULES, expected_range

__all__ = ["Page", "Section", "find_code", "page_of"]

_EXAMPLES = Path(codes.__file__).parent / "examples"
_WHERE = {
    "cause": "the cause of an incident, in `incident.diagnosis.cause`",
    "lint": "found by `stayfinite lint`, without running anything",
    "scan": "found by `stayfinite scan` in a checkpoint or data file",
    "check": "looked at by `stayfinite check` before a run",
}


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, a text or a table of limits."""

    heading: str
    text: str = ""
    rows: tuple[tuple[str, str, str, str], ...] = ()
    """For whom, what is fine, what else happens, who says so; the first row is the head."""


@dataclass(frozen=True)
class Page:
    """All that is to be said of one code."""

    code: str
    kind: str
    definition: str
    where: str
    sections: tuple[Section, ...] = ()
    example: str = ""
    """Source that runs: the unsafe form, and the safe one."""
    related: tuple[tuple[str, str], ...] = ()
    """(code, definition) of the same trouble elsewhere."""


def find_code(name: str) -> codes.Code:
    """The code that is meant; a check may be given without its group where that is one of a kind."""
    wanted = name.strip()
    near = codes.nearest(wanted)
    by_name = {c.name.lower().replace("-", "_"): c for c in codes.all_codes()}
    plain = wanted.lower().replace("-", "_")
    tails = [c for c in by_name.values() if c.name.rpartition("/")[2] == wanted]
    if plain in by_name:
        return by_name[plain]
    if len(tails) == 1:
        return tails[0]
    if tails:
        raise UsageError(f"{wanted!r} is several codes: {', '.join(c.name for c in tails)}")
    hint = f"did you mean {', '.join(near)}?" if near else "no code is like it"
    raise UsageError(f"unknown code {name!r}; {hint}\ntry: stayfinite explain   (lists all codes)")


def page_of(name: str) -> Page:
    """The page of a code.

    >>> [s.heading for s in page_of("log_of_zero").sections]
    ['Looks like', 'Proof', 'Try']
    """
    code = find_code(name)
    sections = [Section(heading, text) for heading, text in code.details]
    example = _example(code)
    if code.kind == "lint":
        sections += _lint_sections(code, example)
    if code.name.startswith("config/"):
        sections += _config_sections(code)
    return Page(
        code=code.name,
        kind=code.kind,
        definition=code.definition,
        where=_WHERE[code.kind],
        sections=tuple(sections),
        example=example,
        related=_related(code),
    )


def _related(code: codes.Code) -> tuple[tuple[str, str], ...]:
    """Those that it names, and those that name it."""
    back = [c.name for c in codes.all_codes() if code.name in c.related]
    names = dict.fromkeys([*back, *code.related])
    return tuple((name, codes.lookup(name).definition) for name in names)


def _example(code: codes.Code) -> str:
    path = _EXAMPLES / f"{code.name}.py.txt"
    return path.read_text(encoding="utf-8") if code.kind == "lint" and path.exists() else ""


def _lint_sections(code: codes.Code, example: str) -> list[Section]:
    """When it is reported and how it is repaired: seen by linting its own example."""
    found = [
        f for f in check_source(example, settings=Settings(pedantic=True)) if f.code == code.name
    ]
    is_default = any(f.is_default for f in found)
    remedies = {f.remedy.title: f.remedy.why for f in found if f.remedy}
    repairs = [f"`--fix`: {title}; {why}." for title, why in remedies.items()]
    tier = (
        "By default."
        if is_default
        else "With `--pedantic` only: it is right to write in many places."
    )
    return [
        Section("Reported", tier),
        Section("Repair", " ".join(repairs) or "There is no automatic repair."),
        Section("Keep a line as it is", f"`# stayfinite: ignore[{code.name}]` behind it."),
    ]  # fmt: skip


def _config_sections(code: codes.Code) -> list[Section]:
    """The rules of a config check, with who says so."""
    name = code.name.partition("/")[2]
    rules = [r for r in RULES if r.name == name]
    if not rules:
        return []
    head = ("for", "fine", "else", "source")
    rows = [
        (
            ", ".join([*r.when, *(f"not {u}" for u in r.unless)]) or "all",
            expected_range(r),
            f"{r.status}: {r.action}",
            r.source,
        )
        for r in rules
    ]
    return [Section("Limits", rows=(head, *rows))]
