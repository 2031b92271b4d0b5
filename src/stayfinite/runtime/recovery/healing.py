"""Continues a diverged training from its last healthy state with a proved setting."""

from __future__ import annotations

import contextlib

from ...recover.policy import Outlook
from ..step_changes import clipped, limited_lr, scaled_lr

__all__ = ["Healing"]


class Healing:
    """Applies the proved setting to all later steps.

    The setting is changed inside each step, as in its proof. The script's own settings are not changed, because a loop that
    sets its learning rate before every step would overwrite them.
    """

    def __init__(self) -> None:
        self._changes = contextlib.ExitStack()

    def apply(self, outlook: Outlook) -> None:
        """Use this setting from the next step on."""
        if outlook.lr_factor != 1.0:
            self._changes.enter_context(scaled_lr(outlook.lr_factor))
        if outlook.lr_limit is not None:
            self._changes.enter_context(limited_lr(outlook.lr_limit))
        if outlook.clip_norm is not None:
            self._changes.enter_context(clipped(outlook.clip_norm))

    def close(self) -> None:
        """Return to the script's own settings."""
        self._changes.close()
