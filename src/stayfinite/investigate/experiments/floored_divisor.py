"""Is a division by almost nothing to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence, Quotient
from ...diagnose.experiments import experiment
from ..laboratory import Laboratory, Run
from ..patched_line import FlooredDivisors

__all__ = ["floored_divisor"]


@experiment("floored_divisor", "divisors not below the epsilon of their dtype")
def floored_divisor(lab: Laboratory, e: Evidence) -> Run:
    floors = FlooredDivisors()
    outcome = yield from lab.once([floors])
    if outcome == "finite" and floors.place is not None:
        file, line = floors.place
        lab.quotient = Quotient(file=file, line=line, smallest=floors.smallest)
        return outcome
    return None if outcome is None else "nonfinite"
