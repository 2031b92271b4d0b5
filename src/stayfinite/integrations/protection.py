"""Protects a program's own loop from a given line on."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ..patches.manager import Subscription
from ..records import Incident
from .session import Session

__all__ = ["Protection"]


class Protection:
    """Active at once; ends with `close()`, at the end of a `with` block, or when it is deleted.

    The owner is the framework's own object (an Accelerator, a Fabric): nobody has to hold on to the
    protection, and at the end of the program the last step is looked at.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        frame: FrameType | None,
        owner: Any,
        optimizers: Iterable[Any] = (),
    ) -> None:
        self._session = session
        session.open(name, optimizers, frame)
        self._others: list[Subscription] = []
        held = owner if owner is not None else self
        self._at_end = weakref.finalize(held, _close, session, self._others)

    @property
    def incidents(self) -> list[Incident]:
        """Every incident so far, oldest first."""
        return self._session.incidents

    def also_close(self, subscription: Subscription) -> None:
        """Add a patch that is removed with the protection."""
        self._others.append(subscription)

    def close(self, error: BaseException | None = None) -> None:
        """Do a last check, then remove all patches."""
        self._at_end.detach()
        _end(self._session, self._others, error)

    def __enter__(self) -> Protection:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(error)


def _close(session: Session, others: list[Subscription]) -> None:
    """Close the session with the exception that ended the program, if any, which Python keeps."""
    _end(session, others, getattr(sys, "last_value", None))


def _end(session: Session, others: list[Subscription], error: BaseException | None) -> None:
    try:
        session.close(error)
    finally:
        while others:
            others.pop().close()
