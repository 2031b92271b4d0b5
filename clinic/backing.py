"""`python -m clinic.backing [NAME ...]`: is every number that an incident speaks of in its fields?

What is said in words (the summary, the evidence, notes, the action) is compared with what was measured:
the event, the links of the chain with their tensors, the history, the experiments, the observed figures.
"""

from __future__ import annotations

import bisect
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from clinic.form import all_cases
from clinic.measure import FORMS, run
from stayfinite import Incident

_NUMBER = re.compile(r"(?<![\w.\[-])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")
_PHRASES = re.compile(
    r"0 \* inf|0 / 0|1e-\d+|loss scale of 1\b|\bsource:.*$|\(line \d+: .*?\)|\([a-z_]+ = .*\)"
)
_SENTENCES = (
    "summary",
    "evidence",
    "reason",
    "note",
    "message",
    "detail",
    "title",
    "why",
    "changed",
)


def unbacked(incident: Incident) -> list[str]:
    """The numbers in its sentences that no field holds, each with its sentence."""
    data = json.loads(incident.to_json())
    known = sorted({abs(v) for v in _numbers(data)})
    d = incident.diagnosis
    said = [
        d.summary, *d.evidence, *(c.reason for c in d.candidates), incident.location.note,
        incident.action.detail, incident.event.message,
    ]  # fmt: skip
    found = []
    for sentence in said:
        for number in _NUMBER.findall(_PHRASES.sub("", sentence)):
            if not _is_near(abs(float(number)), known):
                found.append(f"{number} in: {sentence}")
    return found


def _is_near(value: float, known: list[float]) -> bool:
    """Sentences have four digits, or fewer."""
    at = bisect.bisect_left(known, value)
    return any(math.isclose(value, k, rel_tol=1e-3) for k in known[max(0, at - 1) : at + 1])


def _numbers(value: Any, name: str = "") -> Iterator[float]:
    """All numbers of the structured fields; those of sentences do not count."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _SENTENCES:
                yield from _numbers(item, key)
    elif isinstance(value, list):
        yield float(len(value))
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, str):
        if name != "source" and value.lstrip("-") not in ("inf", "nan"):
            try:
                yield float(value)
            except ValueError:
                yield from (float(n) for n in re.findall(r"\d+(?:\.\d+)?", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def main(names: list[str]) -> int:
    """Exit code 0 when every number is backed, and no cause is surer than its proof."""
    torch.set_num_threads(1)
    total, bad = 0, 0
    for entry in all_cases():
        if names and entry.name not in names:
            continue
        for form in FORMS:
            incident = run(entry, form).incident
            total += 1
            for line in unbacked(incident) if incident is not None else []:
                bad += 1
                print(f"{entry.name} ({form}): {line}")
    print(f"{total} incidents, {bad} numbers without a field")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
