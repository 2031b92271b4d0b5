"""The troubleshooting ladder: runs the script with one change each to see which survives the failing step.

    survey ──► resolve ──► unchanged run ──► one rung a change ──► sets ──► LadderReport

The survey looks at the script without training (its flags, the config files it reads); each rung is
the script in a process of its own, with one change and with its files redirected.
"""

from __future__ import annotations

from .climb import Plan, climb
from .records import Change, LadderReport, Outcome

__all__ = ["Change", "LadderReport", "Outcome", "Plan", "climb"]
