"""Which smaller learning rate stays finite?"""

from __future__ import annotations

from dataclasses import replace

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...runtime.step_changes import limited_lr, scaled_lr
from ..laboratory import Laboratory, Run
from ..search import Search, has_risen, rates_below

__all__ = ["smaller_lr"]


@experiment("smaller_lr", "smaller learning rates from the last snapshot on")
def smaller_lr(lab: Laboratory, e: Evidence) -> Run:
    rate = max((r for r in e.event.lr if 0 < r < float("inf")), default=None)
    if rate is None:
        return None
    is_adaptive = "betas" in e.optimizer or "Ada" in e.optimizer.get("type", "")
    # Of several optimizers only those are slowed down that are faster than what is tried.
    is_limit = has_risen(lab) or len(lab.state.optimizers) > 1
    search = Search(
        lab,
        rates_below(rate),
        lambda value: [limited_lr(value) if is_limit else scaled_lr(value / rate)],
    )
    found = yield from search.run(rate, usual=1e-3 if is_adaptive else 1e-2)
    lab.rate = replace(found, is_limit=is_limit) if found is not None else None
    return lab.outcome(lab.rate)
