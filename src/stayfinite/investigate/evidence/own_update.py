"""The script's own update, where it has made the weights bad: the line of its source that divides."""

from __future__ import annotations

from ...diagnose.evidence import Data
from ...locate.slice import Origin
from ...records import Incident
from ..investigation import Investigation
from .culprit import own_files
from .own_rate import own_quotient

__all__ = ["own_update"]


def own_update(
    investigation: Investigation, incident: Incident, origin: Origin | None
) -> Data | None:
    """The script's own line that divides where it moves the weights, if that has made them bad."""
    source = origin.source if origin is not None and origin.birth is None else None
    is_own = bool(investigation.window.manual_update) and incident.event.phase == "optimizer"
    if not is_own or source is None or source.kind != "parameter":
        return None
    line = own_quotient(own_files(investigation))
    if line is None:
        return None
    return Data(
        origin="pipeline", file=line.file, line=line.line, source=line.source,
        function=line.function, op="aten.div",
    )  # fmt: skip
