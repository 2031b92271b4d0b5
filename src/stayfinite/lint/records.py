"""The findings of lint: one record for the terminal, for JSON and for code hosts."""

from __future__ import annotations

from dataclasses import dataclass

from ..remedies import Remedy

__all__ = ["Finding", "Report", "Unreadable"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A place in a source that can become NaN or Inf, or that hides one."""

    code: str
    path: str
    line: int
    column: int
    """1-based, as in editors."""
    end_line: int
    end_column: int
    message: str
    advice: str
    source: str
    """The first line, as it is written."""
    is_default: bool = True
    """Whether it is shown only with `--pedantic`."""
    remedy: Remedy | None = None
    """The repair of `--fix`, if one is equivalent on healthy values."""


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A file that could not be parsed."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of a run, and how much was read."""

    findings: tuple[Finding, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    num_files: int = 0
    num_lines: int = 0
    duration_ms: float = 0.0
    num_fixed: int = 0
    diffs: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 clean, 1 something was found.

        >>> Report().exit_code
        0
        """
        return 1 if self.findings or self.diffs else 0
