"""Determines the verdict of each operator (safe, can fail, unknown) from its range."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..records import Verdict
from ..tape import Call, Ref
from .call import NEAR, At, Failure
from .names import CREATES
from .rounding import limit_of
from .shadow import Span

__all__ = ["ON_PURPOSE", "Verdicts", "check_exact", "overflow_of"]

ON_PURPOSE = "an infinite number that was written on purpose is passed on"
"""What is said of a safe operator that gives such a number, as a mask does."""


@dataclass
class _Failed:
    """An unsafe operator; a mask after it may revoke that."""

    failures: list[Failure]
    inherited: int | None


class Verdicts:
    """By the operator's index."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._failed: dict[int, _Failed] = {}
        self.found: dict[int, Verdict] = {}

    def pronounce(self, at: At, call: Call, targets: list[Ref], inherited: int | None, parts: frozenset[str],
                  is_on_purpose: bool) -> None:  # fmt: skip
        op = call.operation
        if at.failures:
            self._failed[op.index] = _Failed(at.failures, inherited)
        if at.name in CREATES or not any(r.dtype.is_floating_point for r in targets):
            return
        firm = [f for f in at.failures if not f.is_loose]
        chosen = firm[0] if firm else at.failures[0] if at.failures else None
        if chosen is None:
            status = "safe" if inherited is None else "unknown"
            said = ON_PURPOSE if is_on_purpose else ""
            said = said if inherited is None else self._after_words(inherited)
            self.found[op.index] = Verdict(
                operation=op, status=status, condition=said, after=inherited
            )
            return
        self.found[op.index] = Verdict(
            operation=op,
            status="can_fail" if firm else "unknown",
            condition=chosen.condition if firm else f"not proved: {chosen.condition}",
            kind=chosen.kind,
            parts=tuple(sorted(parts)),
            low=chosen.low,
            high=chosen.high,
            after=inherited,
        )

    def unknown(self, call: Call, targets: list[Ref], parts: frozenset[str], why: str) -> None:
        """There is no model for it."""
        op = call.operation
        is_number = any(r.dtype.is_floating_point for r in targets)
        if is_number and op.op.removeprefix("aten.").rstrip("_") not in CREATES:
            self.found[op.index] = Verdict(
                operation=op, status="unknown", condition=why, parts=tuple(sorted(parts))
            )

    def _after_words(self, index: int) -> str:
        if index < 0:
            return "it is given values that are not known"
        op = self._calls[index].operation
        return (
            f"it is given what {op.name} makes (line {op.line})" if op.line else f"after {op.name}"
        )

    def cancel(self, at: At, index: int | None, inherited: int | None) -> int | None:
        """Revoke a division (`index`) whose zero denominators are masked.

        Returns what the masked result is `after`.
        """
        failed = self._failed.get(index) if index is not None else None
        if failed is None or index is None or any(f.key != at.cancels for f in failed.failures):
            return inherited
        self.found.pop(index, None)  # the two are one operator, and the mask speaks for both
        if not all(f.is_bounded for f in failed.failures):
            near = "the denominator is next to 0, where a mask does not help"
            at.failures.append(Failure("overflow", near, is_loose=True))
        return failed.inherited

    def blame_allocation(self, index: int, reader: Call) -> None:
        op = self._calls[index].operation
        where = f" (line {reader.operation.line})" if reader.operation.line else ""
        self.found[index] = Verdict(
            operation=op,
            status="can_fail",
            kind="uninitialized_memory",
            condition=f"{reader.operation.op} reads elements that were never written{where}",
        )


def check_exact(at: At, span: Span, has_sentinel: bool) -> None:
    """It gives the same in every step: the logarithm of a mask is meant to be -inf, no other."""
    is_mask = has_sentinel or at.name.startswith("log")
    bad = span.lo.isnan() | (span.lo.isinf() & ~((span.lo < 0) & is_mask))
    kind = "zero_denominator" if "div" in at.name or "recip" in at.name else "domain_error"
    at.fail(kind, bad, "always: all that goes in is constant")


def overflow_of(at: At, call: Call, ref: Ref) -> Failure:
    op = call.operation
    is_forward = op.phase == "forward"
    if at.overflow is not None:
        return replace(at.overflow, is_loose=at.overflow.is_loose or not is_forward)
    seen = max(abs(op.seen_lo or 0.0), abs(op.seen_hi or 0.0))
    limit = limit_of(ref.dtype)
    name = str(ref.dtype).removeprefix("torch.")
    kind = "low_precision_overflow" if limit < 1e6 else "overflow"
    is_near = is_forward and seen * NEAR >= limit
    return Failure(
        kind, f"the result is beyond {limit:g}, the limit of {name}", is_loose=not is_near
    )
