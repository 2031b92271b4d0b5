"""What to do about a bad step, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

__all__ = ["Policy"]

_NAMES = ("raise", "skip")


@dataclass(frozen=True)
class Policy:
    """What to do about a bad step, and for how long.

    >>> Policy.parse("skip").name
    'skip'
    >>> Policy.parse("ignore")
    Traceback (most recent call last):
    stayfinite.errors.UsageError: unknown policy 'ignore'; choose one of: raise, skip
    """

    name: str = "skip"
    max_consecutive_skips: int = 50
    """Skips in a row after which the run stops: it would only burn hours."""
    max_total_skips: int = 1000

    def __post_init__(self) -> None:
        if self.name not in _NAMES:
            raise UsageError(f"unknown policy {self.name!r}; choose one of: {', '.join(_NAMES)}")
        for field in ("max_consecutive_skips", "max_total_skips"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"`{field}` must be a whole number of at least 1, got {value!r}")

    @classmethod
    def parse(cls, value: str | Policy) -> Policy:
        """A policy from its name, or the policy itself."""
        if isinstance(value, Policy):
            return value
        if not isinstance(value, str):
            raise UsageError(
                f"`policy` must be one of {', '.join(_NAMES)} or a Policy, got {value!r}"
            )
        return cls(name=value)

    def stop_reason(self, num_consecutive: int, num_total: int) -> str | None:
        """Why the run must stop now, or None."""
        if num_consecutive > self.max_consecutive_skips:
            return f"{num_consecutive} steps in a row were skipped (limit {self.max_consecutive_skips})"
        if num_total > self.max_total_skips:
            return f"{num_total} steps were skipped in all (limit {self.max_total_skips})"
        return None
