"""The check of a shared step: one small all-reduce, or none if all ranks have the same gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.check import bad_rate
from ...numerics.health import FiniteFlag, dense_parts
from ...saying import say
from ..host import Host
from ..window import Failure, Window
from .agreement import RankFailure
from .groups import is_sharded
from .meetings import SyncSchedule, digest_of
from .shards import local

__all__ = ["SharedCheck"]


class SharedCheck:
    """Checks a step together with the other ranks; does nothing if there are none."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._has_agreed_on_snapshots = False
        self._is_deep_agreed = False
        self._has_said = False
        self._schedules: defaultdict[int, SyncSchedule] = defaultdict(SyncSchedule)
        """By optimizer id."""
        self.are_spaced = False
        """Whether there are steps without a synchronization."""
        self._sharded: WeakKeyDictionary[Optimizer, tuple[int, bool]] = WeakKeyDictionary()
        """With how many parameters it was looked up, and whether one of them is a shard."""
        self._marks: list[Any] = []
        """Hooks that make the gradients of one backward NaN; they are removed before the step."""

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether several ranks decide on this optimizer's step together."""
        ranks = self._host.ranks
        if not ranks.is_shared(optimizer) or ranks.is_joining():
            return False
        if not self._has_agreed_on_snapshots:
            self._has_agreed_on_snapshots = True
            if not self._are_all_watched():
                return False
            self._host.deep_checks.agree_on_snapshots()
        return True

    def _are_all_watched(self) -> bool:
        """Check losses, learning rates and gradients; after a scaler, which has reduced its own verdict, without gradients."""
        ranks = self._host.ranks
        absent = ranks.absent()
        if absent is None:
            return True
        ranks.leave()
        which = ", ".join(map(str, absent)) or "another rank"
        say(
            f"stayfinite (rank {ranks.rank}): no answer from rank {which} within {ranks.talk.seconds:g} s: it is "
            "probably not under stayfinite, so this rank is watched alone and may leave out steps that the others "
            "make. Start every process of the training under stayfinite"
        )
        return False

    def check(
        self, window: Window, optimizer: Optimizer, is_scaled: bool = False
    ) -> Failure | None:
        """Check losses, learning rates and gradients; after a scaler, which has reduced its own verdict, without gradients."""
        host = self._host
        self.unmark()
        checked = [local(t).clone() for _, t in window.losses]
        if window.norm is not None and not is_scaled:
            checked.insert(0, window.norm.clone())
        elif not is_scaled:
            checked[:0] = self._own_grads(optimizer)
        rate = next((r for g in optimizer.param_groups if (r := bad_rate(g)) is not None), None)
        some = checked or optimizer.param_groups[0]["params"]
        flag = host.checker.flag_on(some[0].device)
        flag.fold(checked)
        if rate is not None:
            flag.value.fill_(1.0)
        is_bad = self._is_bad(flag, window, optimizer)
        host.ranks.summary.end_step()
        if not is_bad:
            return None
        flag.reset()
        own = None
        if rate is not None:
            own = Failure("learning_rate", window.step, name="lr", value=rate)
        own = own or host.explain(window, [] if is_scaled else [optimizer])
        return host.ranks.agree_on_bad(own, window.step)

    def _is_bad(self, flag: FiniteFlag, window: Window, optimizer: Optimizer) -> bool:
        """The common verdict: by a synchronization, or known without one."""
        host, meetings = self._host, self._schedules[id(optimizer)]
        if meetings.left and not self._is_own(window, optimizer):
            meetings.left -= 1
            return flag.read() and self._is_seen_by_all(flag, window, meetings)
        digest = None
        if not meetings.num_disagreements and host.ranks.can_gather:
            digest = self._digest(window, optimizer)
        agreed = host.ranks.agree_on_flag(flag.value, host.deep_checks.vote(), digest)
        meetings.note(agreed)
        self.are_spaced = any(m.are_spaced for m in self._schedules.values())
        self._is_deep_agreed = agreed.is_due
        return agreed.is_bad

    def _is_own(self, window: Window, optimizer: Optimizer) -> bool:
        """Whether this step's gradients are specific to this rank: not exchanged, or shards without a total norm."""
        is_unsynced = bool(window.unsynced) and window.unsynced[-1] == window.step
        if is_unsynced or self._host.ranks.is_adding_up():
            return True
        return window.norm is None and self._has_shards(optimizer)

    def _own_grads(self, optimizer: Optimizer) -> list[Tensor]:
        """This rank's part of each gradient."""
        grads = [
            g
            for group in optimizer.param_groups
            for p in group["params"]
            if (g := p.grad) is not None
        ]
        return [local(g) for g in grads] if self._has_shards(optimizer) else grads

    def _has_shards(self, optimizer: Optimizer) -> bool:
        """Looked up again only if it has other parameters: a model may have thousands, and this is asked in every step."""
        num = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._sharded.get(optimizer)
        if known is None or known[0] != num:
            found = any(is_sharded(p) for group in optimizer.param_groups for p in group["params"])
            known = self._sharded[optimizer] = num, found
        return known[1]

    def _digest(self, window: Window, optimizer: Optimizer) -> float | None:
        """A digest of what this rank checks; None if the other ranks check something else."""
        if self._is_own(window, optimizer):
            return None
        if window.norm is not None:
            return float(window.norm)
        grads = [t for _, g in self._host.state.grads([optimizer]) for t in dense_parts(g)]
        with torch.no_grad():
            return digest_of([torch.linalg.vector_norm(g) for g in grads if g.numel()])

    def _is_seen_by_all(self, flag: FiniteFlag, window: Window, meetings: SyncSchedule) -> bool:
        """Whether every rank has seen the bad value, in a step without a synchronization."""
        ranks = self._host.ranks
        if ranks.is_seen_by_all(0.5 ** (1 + meetings.num_disagreements)):
            meetings.left = 0  # after a bad step they synchronize in any case
            return True
        flag.reset()
        if not meetings.num_disagreements:
            say(
                f"stayfinite (rank {ranks.rank}): step {window.step}: a value is not finite on this rank, but not on every rank; "
                "a rank cannot skip a step alone, so the step is applied and investigated when the ranks next meet"
            )
        meetings.num_disagreements += 1
        return False

    def seed(self, loss: Tensor) -> Tensor | None:
        """The start gradient for the backward of this loss, or None for 1.

        It is NaN for a loss that is not finite, so that the gradients of all ranks show it. If the host knows the loss, so are
        all gradients: those of a batch without a single valid target are 0, whatever the backward starts with.
        """
        ranks = self._host.ranks
        self.unmark()
        if self._has_agreed_on_snapshots:  # there was a shared step
            ranks.summary.start_backward()
        is_heard = self.are_spaced and ranks.is_together and not ranks.is_joining()
        if not is_heard or not loss.is_floating_point():
            return None
        if not loss.is_cpu:
            return loss.detach() * 0 + 1  # without a sync
        if math.isfinite(loss.item()):
            return None
        params = {
            p for o in self._host.state.optimizers for g in o.param_groups for p in g["params"]
        }
        self._marks = [p.register_hook(_marked) for p in params if p.requires_grad]
        return torch.full_like(loss.detach(), math.nan)

    def unmark(self) -> None:
        """Let gradients be what they are again."""
        while self._marks:
            self._marks.pop().remove()

    def check_alike(self, window: Window, optimizer: Optimizer) -> Failure | None:
        """Check a step inside `with model.join():` by the gradients alone.

        They were summed over the ranks, so all ranks that still train see the same. An optimizer that takes part in the join
        communicates in its step, so its step cannot be skipped.
        """
        config = getattr(optimizer, "_join_config", None)
        grads = self._own_grads(optimizer)
        if not grads or (config is not None and config.enable):
            return None
        flag = self._host.checker.flag_on(grads[0].device)
        flag.fold(grads)
        found = self._host.explain(window, [])
        if flag.read():
            flag.reset()
            return found or self._host.explain(window, [optimizer])
        if found is not None and not self._has_said:
            self._has_said = True
            say(
                f"stayfinite (rank {self._host.ranks.rank}): step {window.step}: the loss is {found.value} and the "
                "gradients are finite; inside `with model.join():` the ranks can only agree about gradients, "
                "so the step is applied"
            )
        return None

    def is_another_ranks(self, failure: Failure) -> bool:
        """Whether this rank must not skip a step for this failure."""
        ranks = self._host.ranks
        if ranks.is_joining() and failure.symptom not in ("loss", "gradient"):
            return True
        return ranks.has_left and isinstance(failure, RankFailure) and failure.rank != ranks.rank

    def note_agreed(self, is_due: bool) -> None:
        self._is_deep_agreed = self._is_deep_agreed or is_due

    def take_agreed_deep_check(self) -> bool:
        """Whether all ranks voted for a deep check after this step."""
        is_due, self._is_deep_agreed = self._is_deep_agreed, False
        return is_due

    def late_failure(self, window: Window) -> Failure | None:
        """The failure of a deferred step; None if another rank reports it."""
        host, ranks = self._host, self._host.ranks
        failure = Failure("loss", window.step, value=float(window.losses[-1][1]))
        if ranks.has_left:
            return host.explain(window, []) or (failure if ranks.is_first else None)
        if not ranks.is_together:
            return failure
        return ranks.agree_on_bad(host.explain(window, []), window.step) or RankFailure(
            "gradient", window.step, rank=ranks.first
        )


def _marked(gradient: Tensor) -> Tensor:
    return gradient * math.nan
