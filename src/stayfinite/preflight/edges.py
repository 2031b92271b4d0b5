"""The edges group: which unusual but possible batch breaks the training, and where."""

from __future__ import annotations

import os
from collections.abc import Generator

from .edges_batches import Edge, edges_of
from .edges_random import ENDS, try_end
from .flow import at_location
from .layers import ask, has_scaler
from .probes import Checks, Probe, Seen, Subject
from .records import Finding, failed, passed, skipped, warned

__all__ = ["edges"]

GROUP = "edges"
_REMEDY = {
    "edges/zero": "guard this operation against a blank sample (clamp the denominator or the argument)",
    "edges/constant": "guard this operation against a variance of zero (add an epsilon inside the root)",
    "edges/huge": "bound this operation's argument (clamp it, or work in log space)",
    "edges/tiny": "guard this operation against values that underflow to zero",
    "edges/repeated": "guard this operation against a distance or variance of zero",
    "edges/one-class": "guard this reduction against having nothing to reduce",
    "edges/no-label": "skip batches without any label, or divide by max(count, 1)",
    "edges/empty-mask": "guard this operation against a mask that keeps nothing",
    "edges/full-mask": "guard this operation against a mask that hides everything",
    "edges/random": "keep the random number off its ends, in float32: clamp it to 1e-6 and 1 - 1e-6",
    "edges/shortest": "guard this operation against short sequences, or filter them out",
    "edges/only-padding": "guard this operation against an empty sequence, or filter empty ones out",
    "edges/longest": "guard this operation against long sequences, or filter them out",
}


def edges(subject: Subject) -> Checks:
    """Batch of one, blank, constant, huge, tiny, repeated, masked and short samples."""
    if not subject.batches:
        return [skipped(GROUP, "edges/any", "no batch was seen")]
    plain = yield from ask(subject, Probe(batch=subject.batches[0], name="the batch as it is"))
    if plain.error is not None or not plain.is_finite:
        return [skipped(GROUP, "edges/any", "the training's own first batch breaks: see forward")]
    found: list[Finding] = []
    for edge in edges_of(subject):
        found.append((yield from _try(subject, edge)))
    for end in ENDS:
        seen, num_calls = yield from try_end(subject, end)
        what = f"the {end} random number (torch.rand)"
        if _broke(seen):
            found.append(_finding(Edge("edges/random", what, None), seen))
        elif num_calls:
            found.append(_survived(Edge("edges/random", what, None), seen))
    if not found:
        return [skipped(GROUP, "edges/any", "the batch holds no tensor that could be changed")]
    return found


def _try(subject: Subject, edge: Edge) -> Generator[Probe, Seen, Finding]:
    seen = yield from ask(subject, Probe(batch=edge.batch, name=edge.what))
    if not _broke(seen):
        return _survived(edge, seen)
    if edge.milder is not None:
        probe = Probe(batch=edge.milder.batch, name=edge.milder.what)
        milder = yield from ask(subject, probe)
        if not _broke(milder):
            note = f"{edge.milder.what}; {edge.what} breaks it ({_short(seen)})"
            return passed(GROUP, edge.check, note, data=_data(seen))
        edge, seen = edge.milder, milder
    if not edge.is_certain and not edge.is_likely:
        note = f"{edge.what} breaks it ({_short(seen)}), {edge.note}"
        return passed(GROUP, edge.check, note, data=_data(seen))
    if seen.error is None:
        scale = 1.0 if has_scaler(subject) else None
        name = f"{edge.what}, traced"
        seen = yield Probe(batch=edge.batch, name=name, trace=True, scale=scale)
    return _finding(edge, seen)


def _survived(edge: Edge, seen: Seen) -> Finding:
    loss = f": loss {seen.loss:.4g}" if seen.loss is not None else ""
    return passed(GROUP, edge.check, f"{edge.what}{loss}", data=_data(seen))


def _broke(seen: Seen) -> bool:
    return seen.error is not None or not seen.is_finite


def _data(seen: Seen) -> dict[str, object]:
    return {"loss": seen.loss, "error": seen.error}


def _short(seen: Seen) -> str:
    return (
        seen.error or f"loss {seen.loss}" if seen.error or _is_bad(seen.loss) else "NaN gradients"
    )


def _is_bad(loss: float | None) -> bool:
    return loss is not None and not abs(loss) < float("inf")


def _finding(edge: Edge, seen: Seen) -> Finding:
    where, words = at_location(seen.location)
    if seen.error is not None:
        where, _, source = seen.error_at.partition(" ")
        where = os.path.basename(where)
        words = f": {source}" if source else ""
    report = failed if edge.is_certain else warned
    return report(
        GROUP,
        edge.check,
        f"{edge.what} gives {_short(seen)}{words}",
        edge.action or _REMEDY[edge.check],
        subject=where,
        # A NaN that was seen outranks a rule of thumb.
        weight=6 if edge.is_certain else 5.5,
        data={**_data(seen), "op": seen.location.op if seen.location else None},
    )
