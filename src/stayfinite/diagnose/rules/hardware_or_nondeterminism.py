"""Two replays from the same state, batch and random numbers were finite."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule

_ENOUGH = 2


@rule("hardware_or_nondeterminism")
def not_reproduced(e: Evidence) -> Finding | None:
    if e.location.is_reproduced or not e.is_complete or e.num_finite_replays < _ENOUGH:
        return None
    sentence = (
        "The same step was run again twice from the same weights, batch and random numbers, and it was "
        "finite. The computation is not deterministic, or the hardware failed once."
    )
    if e.own_counts:
        sentence += (
            f" Or it depends on a count of its own: each run changes {', '.join(e.own_counts)}."
        )
    return Finding(
        confidence=0.7 if e.own_counts else 0.9,
        sentence=sentence,
        facts=(e.location.note,) if e.location.note else (),
        fixes=(
            Fix(
                title="set torch.use_deterministic_algorithms(True) for a while",
                why="an operator without a deterministic form then raises and names itself",
            ),
            Fix(
                title="check the device (ECC errors in nvidia-smi -q, memory test) and unsynchronized "
                "streams, shared buffers and non_blocking copies",
                why="a step that fails once and never again is wrong outside the mathematics",
            ),
        ),
    )
