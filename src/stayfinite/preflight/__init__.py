"""`stayfinite check`: checks a training before it runs.

from stayfinite.preflight import check
report = check(build)        # build() returns model, loss_fn, loader, optimizer
report.verdict, report.findings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .records import CheckReport, Finding

if TYPE_CHECKING:
    from .runner.check import check

__all__ = ["CheckReport", "Finding", "check"]


def __getattr__(name: str) -> Any:
    if name == "check":  # needs torch; the records do not
        from .runner.check import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
