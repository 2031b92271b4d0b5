"""The troubleshooting ladder: runs the script with one change each to see which survives the failing step.

    survey ──► resolve ──► unchanged run ──► one rung per change ──► sets ──► LadderReport

The survey examines the script without training (its flags, the config files it reads). Each rung runs the script in a separate
process, with one change and with its files redirected.
"""

from __future__ import annotations

from .climb import Plan, climb
from .records import Change, LadderReport, Outcome

__all__ = ["Change", "LadderReport", "Outcome", "Plan", "climb"]
