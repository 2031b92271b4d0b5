"""Continues a diverged training from its last healthy state with a proved setting."""

from __future__ import annotations

import contextlib

from ...recover.policy import Outlook
from ..step_changes import clipped, limited_lr, scaled_lr

__all__ = ["Healing"]


class Healing:
    """Holds what is changed in the steps from here on, until the run ends.

    The script's own settings are not written to: a loop that sets its rate before every step would set it
    back. What is changed is what a step uses, exactly as it was when it was proved.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()

    def apply(self, outlook: Outlook) -> None:
        """From the next step on."""
        if outlook.lr_factor != 1.0:
            self._held.enter_context(scaled_lr(outlook.lr_factor))
        if outlook.lr_limit is not None:
            self._held.enter_context(limited_lr(outlook.lr_limit))
        if outlook.clip_norm is not None:
            self._held.enter_context(clipped(outlook.clip_norm))

    def close(self) -> None:
        """The script's own settings hold again."""
        self._held.close()
