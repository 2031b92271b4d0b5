"""Is this line the only one to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...locate.slice import to_location
from ...records import Link
from ...runtime.window import ReplayResult
from ..laboratory import Laboratory, Run, outcome_of
from ..patched_line import PatchedLine

__all__ = ["patched_operator"]

_MAX_BIRTHS = 4


@experiment("patched_operator", "this line kept finite")
def patched_operator(lab: Laboratory, e: Evidence) -> Run:
    if e.birth is None or e.birth.file is None:
        return None
    births = [e.birth]
    while True:
        result = yield from lab.traced([PatchedLine(b) for b in births])
        another = _birth(result)
        if another is None or len(births) >= _MAX_BIRTHS or not lab.has_time:
            break
        if another.line is None or any(_is_same_line(another, b) for b in births):
            break
        births.append(another)  # one more line of this step that fails on its own
    outcome = outcome_of(result)
    if outcome == "finite":
        lab.also = tuple(births[1:])
    return outcome


def _birth(result: ReplayResult) -> Link | None:
    if result.origin is None or result.origin.birth is None:
        return None
    chain = to_location(result.origin, "replay").chain
    return next((link for link in chain if link.role == "birth"), None)


def _is_same_line(one: Link, other: Link) -> bool:
    return (one.file, one.line) == (other.file, other.line)
