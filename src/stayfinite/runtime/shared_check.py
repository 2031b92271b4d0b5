"""The check of a step that several ranks share: one tiny all-reduce before the read."""

from __future__ import annotations

from torch.optim import Optimizer

from ..detect.check import bad_rate
from ..saying import say
from .host import Host
from .ranks import RankFailure
from .shards import local
from .window import Failure, Window

__all__ = ["SharedCheck"]


class SharedCheck:
    """Decides together with the other ranks; inert while there are none."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._has_met = False
        self._is_deep_agreed = False
        self._has_said = False

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is decided by several ranks together."""
        ranks = self._host.ranks
        if not ranks.is_shared(optimizer) or ranks.is_joining():
            return False
        if not self._has_met:
            self._has_met = True
            self._host.meet()
        return True

    def check(
        self, window: Window, optimizer: Optimizer, is_scaled: bool = False
    ) -> Failure | None:
        """Losses, rates and gradients; after a scaler, which has reduced its own verdict, without these."""
        host = self._host
        checked = [local(t).clone() for _, t in window.losses]
        if window.norm is not None and not is_scaled:
            checked.insert(0, window.norm.clone())
        elif not is_scaled:
            checked[:0] = [local(g) for _, g in host.state.grads([optimizer])]
        rate = next((r for g in optimizer.param_groups if (r := bad_rate(g)) is not None), None)
        some = checked or optimizer.param_groups[0]["params"]
        flag = host.checker.flag_on(some[0].device)
        flag.fold(checked)
        if rate is not None:
            flag.value.fill_(1.0)
        agreed = host.ranks.agree_on_flag(flag.value, host.wish())
        self._is_deep_agreed = agreed.is_due
        if not agreed.is_bad:
            return None
        flag.reset()
        own = None
        if rate is not None:
            own = Failure("learning_rate", window.step, name="lr", value=rate)
        own = own or host.explain(window, [] if is_scaled else [optimizer])
        return host.ranks.agree_on_bad(own, window.step)

    def check_alike(self, window: Window, optimizer: Optimizer) -> Failure | None:
        """Inside `with model.join():` by the gradients alone: they have been summed over the ranks, so all that
        still train see the same, and nobody is asked. An optimizer that takes part in the join talks in
        its step, which none may leave out then."""
        config = getattr(optimizer, "_join_config", None)
        grads = [local(g) for _, g in self._host.state.grads([optimizer])]
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
                "gradients are finite; inside `with model.join():` only these can be judged alike on all ranks, "
                "so the step is applied"
            )
        return None

    def is_another_ranks(self, failure: Failure) -> bool:
        """Whether it is not this rank's to leave a step out for this."""
        ranks = self._host.ranks
        if ranks.is_joining() and failure.symptom not in ("loss", "gradient"):
            return True
        return ranks.has_left and isinstance(failure, RankFailure) and failure.rank != ranks.rank

    def note_agreed(self, is_due: bool) -> None:
        self._is_deep_agreed = self._is_deep_agreed or is_due

    def take_agreed_deep_check(self) -> bool:
        """Whether all ranks wanted a deep check after this step."""
        is_due, self._is_deep_agreed = self._is_deep_agreed, False
        return is_due

    def late_failure(self, window: Window) -> Failure | None:
        """What a deferred step that went wrong is called; None where another rank reports it."""
        host, ranks = self._host, self._host.ranks
        failure = Failure("loss", window.step, value=float(window.losses[-1][1]))
        if ranks.has_left:
            return host.explain(window, []) or (failure if ranks.is_first else None)
        if not ranks.is_together:
            return failure
        return ranks.agree_on_bad(host.explain(window, []), window.step) or RankFailure(
            "gradient", window.step, rank=ranks.first
        )
