"""Why it happened: gather evidence, ask the rules, try what would decide, ask again."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..diagnose.evidence import Evidence
from ..diagnose.rank import conclude, consider, wanted_experiments
from ..locate.slice import Origin
from ..records import Experiment, Incident
from .gather import gather
from .window import Pass, PassResult

if TYPE_CHECKING:
    from .investigation import Investigation

__all__ = ["diagnose"]


def diagnose(
    about: Investigation, incident: Incident, origin: Origin | None
) -> Generator[Pass, PassResult, Incident]:
    """The incident with its diagnosis. The training is left as it was found."""
    evidence = gather(about, incident, origin, about.core.settings.diagnose_seconds)
    ranked = consider(evidence)
    if False:
        yield
    return replace(incident, diagnosis=conclude(ranked, evidence, []))
