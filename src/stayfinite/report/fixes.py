"""Describes an incident's changes: proved, refuted, and their diffs."""

from __future__ import annotations

from ..records import ON_OTHER_BATCHES, Fix, Incident, Proof

__all__ = ["advice", "diff_lines", "first_fix", "proof_words", "refuted"]


def first_fix(incident: Incident) -> Fix | None:
    """The change to show first: a proved one, if there is one."""
    return next((f for f in incident.diagnosis.fixes if f.status == "proved"), None)


def advice(incident: Incident) -> list[Fix]:
    """Further advice, without refuted changes."""
    first = first_fix(incident)
    return [f for f in incident.diagnosis.fixes if f.status != "refuted" and f is not first]


def refuted(incident: Incident) -> list[Fix]:
    """The changes that were tried and do not help."""
    return [f for f in incident.diagnosis.fixes if f.status == "refuted"]


def proof_words(proof: Proof, step: int) -> str:
    """One sentence about the result of running the change.

    >>> proof_words(Proof(is_step_finite=True, num_healthy=3, largest_change=1e-7, num_after=6), 18)
    'step 18 is finite; 3 healthy steps before it give the same loss (largest change 1e-07); 6 steps after it stay finite'
    >>> proof_words(Proof(note="the step is still not finite"), 18)
    'the step is still not finite'
    >>> first = Proof(is_step_finite=True, num_healthy=3, largest_change=0.0, num_after=9, note=ON_OTHER_BATCHES)
    >>> proof_words(first, 0)
    'step 0 is finite; 3 other batches of the data set give the same loss (exactly); 9 of them stay finite'
    """
    if not proof.is_step_finite:
        return proof.note
    if not proof.num_healthy and proof.note.startswith("from "):
        return f"{proof.num_after} steps {proof.note} stay finite"
    if proof.note.startswith("what raised "):
        return f"step {step}: {proof.note}"
    parts = [f"step {step} is finite"]
    if proof.note == ON_OTHER_BATCHES:
        return "; ".join([*parts, *_other_batches(proof)])
    if proof.note.startswith(("it ", "step ")):
        return f"{parts[0]}, but {proof.note}"
    if proof.num_healthy and proof.largest_change is not None:
        steps = "1 healthy step" if proof.num_healthy == 1 else f"{proof.num_healthy} healthy steps"
        parts.append(f"{steps} before it {_same_loss(proof)}")
    else:
        parts.append("no healthy step was available to compare with")
    if proof.num_after:
        steps = "1 step" if proof.num_after == 1 else f"{proof.num_after} steps"
        parts.append(f"{steps} after it {'stays' if proof.num_after == 1 else 'stay'} finite")
    if proof.note:
        parts.append(proof.note)
    return "; ".join(parts)


def _other_batches(proof: Proof) -> list[str]:
    """For a failing first step, which has no healthy steps before it."""
    number, after = proof.num_healthy, proof.num_after
    if not number:
        others = "1 other batch" if after == 1 else f"{after} other batches"
        return [f"{others} of the data set {'stays' if after == 1 else 'stay'} finite"]
    others = "1 other batch" if number == 1 else f"{number} other batches"
    stays = "stays" if after == 1 else "stay"
    return [f"{others} of the data set {_same_loss(proof)}", f"{after} of them {stays} finite"]


def _same_loss(proof: Proof) -> str:
    gives = "gives" if proof.num_healthy == 1 else "give"
    change = f"largest change {proof.largest_change:.1g}" if proof.largest_change else "exactly"
    return f"{gives} the same loss ({change})"


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """(kind, line) of a patch: head, del, add or same."""
    kinds = {"+": "add", "-": "del", "@": "head"}
    lines = []
    for line in diff.splitlines():
        is_name = line.startswith(("--- ", "+++ "))
        lines.append(("head" if is_name else kinds.get(line[:1], "same"), line))
    return lines
