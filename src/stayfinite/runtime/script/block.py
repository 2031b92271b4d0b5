"""Watches a part of a running program as `stayfinite run` watches a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ...config import Settings
from ...patches.firewall import Firewall
from ...records import Incident
from ...recover.policy import Policy
from ...report.store import RunFolder
from ..discover import find_optimizers
from ..engine import Investigate
from .run_script import ScriptRun

__all__ = ["WatchedBlock"]


class WatchedBlock(ScriptRun):
    """Protects the trainings of this thread between `open` and `close`."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        run_dir: Path | None,
        investigate: Investigate,
        say: Callable[[Incident], None] | None = None,
    ) -> None:
        super().__init__(settings, policy, run_dir, investigate)
        self._say = say
        self._is_open = False

    def open(
        self, name: str, optimizers: Iterable[Any] = (), frame: FrameType | None = None
    ) -> None:
        """Start; `optimizers`, and those reachable from `frame`, exist already."""
        self._set_up(self._wanted_dir, name)
        if self._say is not None:
            assert self.folder is not None
            self.folder = RunFolder(self.folder.path, say=self._say)
        self._is_open = True
        self._listen()
        self.driver.firewall.call(self._adopt, optimizers)
        if frame is not None:
            self.adopt(frame)

    def adopt(self, frame: FrameType | None, names: Mapping[str, Any] | None = None) -> None:
        """Track reachable optimizers that were made before `open`."""
        call = self.driver.firewall.call
        call(self._adopt, call(find_optimizers, frame, names, fallback=()))

    def _adopt(self, optimizers: Iterable[Any]) -> None:
        for each in {id(o): o for o in optimizers}.values():
            if self.driver.owns(each):
                continue
            if self._training is not None:
                self._training.watch_optimizer(each)
            self.driver.on_optimizer(each)

    def close(self, error: BaseException | None = None) -> None:
        """Run a last check, then remove every patch. `error`: the exception that ended the training."""
        if not self._is_open:
            return
        self._is_open = False
        end = Firewall("the end of the protection")
        try:
            end.once(self._finish, error)
        finally:
            end.once(self.leave)
            sys.stderr.flush()
