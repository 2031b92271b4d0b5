"""Describes the result of a search for a setting, and makes a fix from it."""

from __future__ import annotations

from ..records import Fix, Proof
from .evidence import Evidence, Searched
from .words import num

__all__ = ["clip_fix", "describe_search", "is_in_search", "rate_fix"]


def describe_search(found: Searched | None) -> str:
    """A sentence about the result of the search.

    >>> describe_search(Searched(before=1e-2, passed=3e-4, failed=1e-3, num_steps=24, num_batches=6))
    '0.0003 passes 24 steps over 6 batches, 0.001 does not'
    """
    if found is None:
        return ""
    if found.passed is None:
        return f"the lowest tried was {num(found.failed)}" if found.failed is not None else ""
    over = f" over {found.num_batches} batch{'es' * (found.num_batches != 1)}"
    text = f"{num(found.passed)} passes {found.num_steps} steps{over}"
    return f"{text}, {num(found.failed)} does not" if found.failed is not None else text


def _proof(found: Searched) -> Proof:
    """A sentence about the proposed value."""
    return Proof(
        is_step_finite=True, num_after=found.num_steps, note="from the last healthy state on"
    )


def rate_fix(e: Evidence) -> Fix | None:
    """The rate that was run; a tenth of the current one if none could be run; no fix if all failed."""
    lr = max(e.event.lr, default=None)
    found = e.rate
    if found is not None:
        if found.passed is None or found.before is None:
            return None
        return Fix(
            title=f"lower the learning rate: {num(found.passed)} instead of {num(found.before)}",
            why=f"{describe_search(found)}, each from the last healthy state on",
            before=f"lr={num(found.before)}",
            after=f"lr={num(found.passed)}",
            experiment="smaller_lr",
            status="proved",
            proof=_proof(found),
        )
    why = "each update is then shorter and does not overshoot the last one"
    if not lr:
        return Fix(title="lower the learning rate", why=why, experiment="smaller_lr")
    lower = min(lr / 10, 1e-2)  # far above any usual rate, a tenth of it does not help
    return Fix(
        title=f"lower the learning rate: {num(lower)} or less instead of {num(lr)}",
        why=why,
        before=f"lr={num(lr)}",
        after=f"lr={num(lower)}",
        experiment="smaller_lr",
    )


def clip_fix(e: Evidence) -> Fix | None:
    """Clipping if the loop does not clip; a smaller norm if it does and that passed."""
    found = e.clip
    passed = found.passed if found is not None else None
    if found is not None and passed is None:
        return None
    if e.is_clipped and passed is None:
        return None
    what = "clip to a smaller norm" if e.is_clipped else "clip the gradient norm"
    return Fix(
        title=f"{what} (torch.nn.utils.clip_grad_norm_(model.parameters(), {num(passed or 1.0)}) before "
        "optimizer.step())",
        why=f"a norm of {describe_search(found)}, each from the last healthy state on"
        if passed
        else "it bounds the length of an update, whatever the gradient",
        experiment="clipped",
        status="proved" if passed else "untried",
        proof=_proof(found) if found is not None and passed else None,
    )


def is_in_search(e: Evidence) -> bool:
    """Whether it was born in the search of LBFGS for its next weights."""
    return (e.location.library_file or "").replace("\\", "/").endswith("optim/lbfgs.py")
