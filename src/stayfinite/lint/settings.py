"""Settings: from `[tool.stayfinite.lint]` in pyproject.toml, overridden by the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..codes import all_codes
from ..errors import UsageError
from ..parsing import parse_toml

__all__ = ["Settings", "read_settings"]

_LISTS = ("select", "ignore", "exclude")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The selected codes and the excluded files."""

    select: frozenset[str] = frozenset()
    """Only these codes; none means all. A prefix selects all codes that begin with it."""
    ignore: frozenset[str] = frozenset()
    pedantic: bool = False
    exclude: tuple[str, ...] = field(default=())
    """Patterns of paths, as in `Path.match`."""

    def __post_init__(self) -> None:
        known = [c.name for c in all_codes("lint")]
        for code in sorted(self.select | self.ignore):
            if not code or not any(name.startswith(code) for name in known):
                raise UsageError(f"unknown code {code!r}; known: {', '.join(known)}")

    def wants(self, code: str, is_default: bool) -> bool:
        """Whether a finding of this code is shown; a code that is selected by name is, even if pedantic.

        >>> Settings(select=frozenset({"SF1"})).wants("SF105", is_default=False)
        False
        >>> Settings(select=frozenset({"SF105"})).wants("SF105", is_default=False)
        True
        """
        if any(code.startswith(prefix) for prefix in self.ignore):
            return False
        if self.select and not any(code.startswith(prefix) for prefix in self.select):
            return False
        return is_default or self.pedantic or code in self.select


def read_settings(
    start: Path,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    pedantic: bool = False,
) -> Settings:
    """The settings of the project of `start`, overridden by those of the command line."""
    table = _table(start)
    unknown = sorted(set(table) - {*_LISTS, "pedantic"})
    if unknown:
        raise UsageError(
            f"[tool.stayfinite.lint] has unknown keys {', '.join(unknown)}; "
            f"known: {', '.join((*_LISTS, 'pedantic'))}"
        )
    for name in _LISTS:
        _check_list(name, table.get(name, []))
    if not isinstance(table.get("pedantic", False), bool):
        raise UsageError(f"`pedantic` must be true or false, got {table['pedantic']!r}")
    return Settings(
        select=frozenset(select) or frozenset(table.get("select", [])),
        ignore=frozenset(ignore) | frozenset(table.get("ignore", [])),
        pedantic=pedantic or table.get("pedantic", False),
        exclude=tuple(table.get("exclude", [])),
    )


def _check_list(name: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"`{name}` must be a list of texts, got {value!r}")


def _table(start: Path) -> dict[str, Any]:
    here = start.resolve()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        data = parse_toml(file.read_text(encoding="utf-8"))
    except ValueError as e:  # bad TOML or bad UTF-8
        raise UsageError(f"{file}: {e}") from None
    table = data.get("tool", {}).get("stayfinite", {}).get("lint", {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.stayfinite.lint] must be a table, got {table!r}")
    return table
