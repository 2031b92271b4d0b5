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
"""How many copies were made of each of the training's groups, for their names."""


class OthersBrokeOff(Exception):
    """Raised if another rank could not compute its part of a common replay."""


class RankTalk:
    """Messages about one failure at a time; a rank that cannot continue releases the others."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self.seconds = seconds
        self._say = say
        self._side: SideGroup | None = None
        self.copies = GroupCopies(seconds)
        """The groups for replays."""
        self.is_lost = False
        """Whether the others did not answer after the last failure; reset when the training hears from them."""

    def gather(self, group: Any, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the group."""
        found = self._exchange(group, "gather", value)
        if any(kind != "gather" for kind, _ in found):
            raise OthersBrokeOff
        return [v for _, v in found]

    def broadcast(self, group: Any, rank: int, value: Any, more_seconds: float) -> Any:
        """The value of a global rank, on all ranks."""
        root = dist.get_group_rank(group, rank)
        with self._losing():
            return self._side_of(group).broadcast(root, value, more_seconds)

    def begin_replay(self, group: Any, used: Sequence[Any]) -> None:
        """Let the following replay communicate over copies of the training's groups."""
        with self._losing():
            self.copies.prepare(self._side_of(group).name, used)

    def end_replay(self, group: Any, is_broken: bool) -> bool:
        """End a replay; returns whether any rank could not compute its part."""
        if is_broken:
            self.copies.close()  # release the ranks that wait for this one
        found = self._exchange(group, "end", is_broken)
        while any(kind != "end" for kind, _ in found):
            is_broken = True  # one that was still synchronizing learns it from this
            found = self._exchange(group, "end", True)
        if is_broken or any(broken for _, broken in found):
            self.copies.renew()
            return True
        return False

    def give_up(self) -> None:
        """Release the other ranks, because this one cannot continue the investigation."""
        self.is_lost = True
        self.close()

    def close(self) -> None:
        """Close the connections; the next failure opens new ones."""
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
        """If the others do not answer, do not ask them about this failure any more."""
        try:
            yield
        except SideGroupError as error:
            self.give_up()
            self._say(f"the ranks cannot investigate this step together: {error}")
            raise
