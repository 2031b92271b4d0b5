"""Messages between ranks after a failure, with a time limit."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

from .side_groups import GroupCopies, SideGroup, SideGroupError

__all__ = ["OthersBrokeOff", "RankTalk"]

_numbers: Counter[str] = Counter()
"""How many groups of our own were made beside each of the training's: their names differ by it."""


class OthersBrokeOff(Exception):
    """Another rank has left what is computed together: its own part of it could not be computed."""


class RankTalk:
    """One failure after the other; whoever cannot go on lets the others go."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds = seconds
        self._say = say
        self._side: SideGroup | None = None
        self.copies = GroupCopies(seconds)
        """The groups over which replays talk."""
        self.is_lost = False
        """The others did not answer after the last failure; until the training itself hears from them."""

    def gather(self, group: Any, value: Any) -> list[Any]:
        """Every rank's value, in the order of the group."""
        found = self._exchange(group, "gather", value)
        if any(kind != "gather" for kind, _ in found):
            raise OthersBrokeOff
        return [v for _, v in found]

    def broadcast(self, group: Any, rank: int, value: Any, more_seconds: float) -> Any:
        """The value of that rank (counted over all processes), on all."""
        root = dist.get_group_rank(group, rank)
        with self._losing():
            return self._side_of(group).broadcast(root, value, more_seconds)

    def begin_replay(self, group: Any, used: Sequence[Any]) -> None:
        """What is computed from here on talks over copies of the groups that the training uses."""
        with self._losing():
            self.copies.prepare(self._side_of(group).name, used)

    def end_replay(self, group: Any, is_broken: bool) -> bool:
        """All ranks have computed their part of a replay, or some of them could not; whether that is so."""
        if is_broken:
            self.copies.close()  # who waits for this rank's part is let go
        found = self._exchange(group, "end", is_broken)
        while any(kind != "end" for kind, _ in found):
            is_broken = True  # one that was still agreeing on something has learned it from this
            found = self._exchange(group, "end", True)
        if is_broken or any(broken for _, broken in found):
            self.copies.renew()
            return True
        return False

    def give_up(self) -> None:
        """This rank cannot go on with an investigation: the others are let go at once."""
        self.is_lost = True
        self.close()

    def close(self) -> None:
        """Connections are closed; the next failure opens new ones."""
        side, self._side = self._side, None
        if side is not None:
            side.close()
        self.copies.close()

    def _exchange(self, group: Any, kind: str, value: Any) -> list[tuple[str, Any]]:
        with self._losing():
            return self._side_of(group).gather((kind, value))

    def _side_of(self, group: Any) -> SideGroup:
        if self._side is None:
            name: str = group.group_name
            _numbers[name] += 1
            self._side = SideGroup(group, f"{name}/{_numbers[name]}", self.seconds)
        return self._side

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """Where the others do not answer, they are not asked about this failure any more."""
        try:
            yield
        except SideGroupError as error:
            self.give_up()
            self._say(f"the ranks cannot investigate this step together: {error}")
            raise
