"""Policy `parts`: repeats a bad step without the bad parts of its loss."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from ...records import Action, Event
from ..host import Host
from ..window import Verdict, Window
from .loss_parts import Left, by_parts

__all__ = ["PartRedo"]

_SYMPTOMS = ("loss", "gradient")


class PartRedo:
    """Repeats bad steps without the bad parts of their loss, each step once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tried: set[tuple[int, int]] = set()
        self._has_warned = False
        self.left: list[Left] = []
        """The parts that were dropped in the last such step."""

    def can(self, window: Window | None, symptom: str) -> bool:
        """Whether this step can be split into parts; not with several ranks, which would have to agree."""
        if window is None or symptom not in _SYMPTOMS:
            return False
        if self._host.ranks.has_others:
            self._warn_of_ranks(window.step)
            return False
        return (window.epoch, window.step) not in self._tried and not window.own_update

    def _warn_of_ranks(self, step: int) -> None:
        """Warn once. `run` refuses the policy under a launcher, but a script may start its ranks itself."""
        if not self._has_warned:
            self._has_warned = True
            text = (
                "policy parts is for one rank: with several, a bad step is skipped on all of them"
            )
            self._host.lookout.warn(Event(step=step, phase="loss", kind="policy", message=text))

    def again(self, window: Window) -> Window:
        """A copy of the window that is computed by parts."""
        self._tried.add((window.epoch, window.step))
        self.left = []
        new = Window([ref.again() for ref in window.batches], window.rng, window.lrs)
        new.around = self._around
        return new

    def run(self, verdict: Verdict, window: Window) -> bool:
        """Run and apply the step by parts, if the loop's statements can be replayed; whether it was applied."""
        if verdict.run_again is None:
            return False
        new = self.again(window)
        with new.around():
            return verdict.run_again(new, False) is True and bool(self.left)

    def _around(self) -> AbstractContextManager[None]:
        return by_parts(self._parameters, self.left.append)

    def _parameters(self) -> list[tuple[str, Tensor]]:
        state = self._host.state
        named = list(state.parameters())
        known = {id(p) for _, p in named}
        groups = [g for o in state.optimizers for g in o.param_groups]
        others: list[Any] = [p for g in groups for p in g["params"] if id(p) not in known]
        return [*named, *(("", p) for p in others)]

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for left in self.left for name in left.names))

    def action(self) -> Action:
        """The action, with a description."""
        if not self.left:
            return Action(
                kind="partial",
                detail="repeated without the parts of the loss that are not finite",
            )
        total = self.left[-1].num_parts
        return Action(
            kind="partial",
            detail=f"the step was made without the gradient of {', '.join(self.names())}; "
            f"the other parts of the loss ({total} in all) count as usual",
        )
