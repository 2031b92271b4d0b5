"""What a framework's own step does besides computing, kept still during a replay."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ..patches.manager import Subscribers, Target, subscribe

__all__ = ["unlogged"]

_HOMES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_REASON = "a replayed training_step logs nothing"


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """`self.log` and `self.log_dict` of Lightning modules do nothing in this thread."""
    with contextlib.ExitStack() as stack:
        for home in _HOMES:
            cls = getattr(sys.modules.get(home), "LightningModule", None)
            for name in ("log", "log_dict") if cls is not None else ():
                target = Target(cls, name, _REASON, "sandbox")
                stack.enter_context(subscribe(target, _muted, threading.get_ident()))
        yield


def _muted(original: Any, subscribers: Subscribers) -> Any:
    def log(module: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() in subscribers:
            return None
        return original(module, *args, **kwargs)

    return log
