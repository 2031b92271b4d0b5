"""The session that all integrations open and close around a training."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..config import Settings
from ..investigate.entry import investigate
from ..records import Incident
from ..recover.policy import Policy
from ..runtime.engine import Engine
from ..runtime.script.block import WatchedBlock
from ..runtime.script.run_script import run_here

__all__ = ["Session"]


class Session:
    """Opened and closed for each training of its framework; it keeps nothing of the training once closed.

    Where this thread is watched already (`stayfinite run`, a cell, a test) the session leaves the work to
    that one: there is one report, and `incidents` are the same.
    """

    def __init__(
        self,
        policy: str | Policy = "skip",
        run_dir: str | Path | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        say: Callable[[Incident], None] | None = None,
    ) -> None:
        self.policy = Policy.parse(policy)
        self.run_dir = Path(run_dir).absolute() if run_dir is not None else None
        self.settings = (
            settings if isinstance(settings, Settings) else Settings.from_mapping(settings or {})
        )
        self._say = say
        self._block: WatchedBlock | None = None
        self._engine: Engine | None = None
        self._num_before = 0
        self._past: list[Incident] = []
        self._at_end: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """A callback may be sent to another process, which opens a session of its own."""
        closed = {"_block": None, "_engine": None, "_at_end": None}
        return {**vars(self), **closed}

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def incidents(self) -> list[Incident]:
        """Every incident so far, oldest first."""
        return [*self._past, *self._now()]

    @property
    def num_incidents(self) -> int:
        """The number of incidents, without building a list, because it is read at every step."""
        now = len(self._engine.incidents) - self._num_before if self._engine is not None else 0
        return len(self._past) + now

    def _now(self) -> list[Incident]:
        return self._engine.incidents[self._num_before :] if self._engine is not None else []

    def open(
        self, name: str, optimizers: Iterable[Any] = (), frame: FrameType | None = None
    ) -> None:
        """Track `optimizers` and those reachable from `frame`, which were made earlier."""
        if self.is_open:
            return
        outer = run_here()
        if outer is not None:
            self._engine, self._num_before = outer.engine, len(outer.engine.incidents)
            return
        block = WatchedBlock(self.settings, self.policy, self.run_dir, investigate, self._say)
        block.open(name, optimizers, frame)
        self._block, self._engine, self._num_before = block, block.engine, 0
        self._at_end = weakref.finalize(self, block.close)

    def adopt(self, names: Mapping[str, Any]) -> None:
        """Track the optimizers reachable from these variables, which were made earlier."""
        if self._block is not None:
            self._block.adopt(None, names)

    @property
    def block(self) -> WatchedBlock | None:
        """The watched block, if this session opened it."""
        return self._block

    def close(self, error: BaseException | None = None) -> None:
        """Do a last check and remove all patches; `error`: the exception that ended the training."""
        block, self._block = self._block, None
        try:
            if block is not None:
                self._at_end.detach()
                block.close(error)
        finally:
            self._past += self._now()
            self._engine = self._at_end = None
