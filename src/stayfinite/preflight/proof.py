"""The proof group (`--prove`): bounds on what each operator of one captured step can give."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, TensorDataset, default_collate

from ..foresee.intervals.box import Box, batch_sizes_of, box_around, reach_of, read_box, widened_by
from ..foresee.intervals.lines import ByLine, by_line
from ..foresee.tape import Capture
from ..investigate.budget import Budget
from ..runtime.batches import named_tensors
from ..runtime.rows import num_rows
from .probes import Checks, Probe, Proof, Seen, Subject
from .records import Finding, passed, skipped, warned

__all__ = ["proof"]

GROUP = "proof"
_MAX_SHOWN = 12
_MAX_SAMPLES = 5000
_DATA_S = 1.5
"""For so long the data set is looked at for its ranges."""
_WORDS = {
    "zero_denominator": "keep the denominator away from 0 (clamp it, or add an epsilon that this dtype can hold)",
    "log_of_zero": "take the logarithm of what cannot be 0: log_softmax, logsigmoid, or a clamp before it",
    "domain_error": "clamp the argument into the function's domain before it",
    "exp_overflow": "bound the argument: clamp it, or subtract the maximum first",
    "fully_masked_row": "leave one entry of each row unmasked, or give such rows a value of their own",
    "empty_reduction": "divide by max(count, 1), or leave an empty selection out",
    "low_precision_overflow": "compute this line in float32, or scale what goes in",
    "masked_branch_leak": "put a harmless number where the mask is, before the function (the double where)",
    "infeasible_target": "leave out targets that cannot be reached (zero_infinity=True for CTC)",
    "uninitialized_memory": "use zeros instead of empty, or write every element before it is read",
    "singular_gradient": "keep the argument away from the point where the derivative is infinite",
}


def proof(subject: Subject) -> Checks:
    """One step on the first batch, applied and undone."""
    if not subject.batches:
        return [skipped(GROUP, "proof/step", "no batch was seen")]
    seen: Seen = yield Probe(
        subject.batches[0],
        "a step, captured",
        apply=True,
        fresh=True,
        prove=lambda c, g: _box(subject, c, g),
    )
    if seen.error is not None:
        return [skipped(GROUP, "proof/step", f"the step raised {seen.error}")]
    if seen.proof is None:
        return [skipped(GROUP, "proof/step", seen.proof_error or "nothing was captured")]
    return _findings(seen.proof)


def _box(subject: Subject, capture: Capture, gradients: dict[int, float]) -> Box:
    """Ranges of all the batches that were seen, weights that some steps can reach."""
    names = {id(p): n for n, p in subject.parameters()}
    reach = reach_of(subject.optimizers, names, clip_norm=subject.clip_norm, gradients=gradients)
    rows = [num_rows(b) or 0 for b in subject.batches]
    sizes = batch_sizes_of(subject.loaders, rows)
    box = box_around(capture, reach, sizes)
    for batch in subject.batches[1:]:
        box = widened_by(box, named_tensors(batch))
    for loader in subject.loaders if len(subject.loaders) == 1 else ():
        for sample in _samples(loader):
            box = widened_by(box, named_tensors(sample))
    return read_box(Path(subject.box_path), box) if subject.box_path else box


def _samples(loader: Any) -> Iterator[Any]:
    """Samples of the data set, evenly spread, for as long as there is time.

    Only where a batch is a stack of them: else its parts have other names and values.
    """
    data = getattr(loader, "dataset", None)
    if getattr(loader, "collate_fn", None) is not default_collate or isinstance(
        data, IterableDataset
    ):
        return
    if isinstance(data, TensorDataset):
        yield list(data.tensors)
        return
    budget = Budget(_DATA_S)
    try:
        num = len(data)  # type: ignore[arg-type]
        for i in range(0, num, max(1, num // _MAX_SAMPLES)):
            if budget.is_over:
                return
            yield data[i]  # type: ignore[index]
    except Exception:  # what its samples raise is reported by the data group
        return


def _findings(found: Proof) -> list[Finding]:
    lines = by_line(found.verdicts)
    by_status = {s: [x for x in lines if x.status == s] for s in ("can_fail", "unknown", "safe")}
    return [
        _box_finding(found),
        *(_can_fail(x) for x in by_status["can_fail"]),
        *_unknown(by_status["unknown"]),
        _safe(found, by_status["safe"]),
    ]


def _can_fail(x: ByLine) -> Finding:
    v = x.worst
    op = v.operation
    held = f", in [{v.low:.3g}, {v.high:.3g}]" if v.low is not None and v.high is not None else ""
    return warned(
        GROUP,
        "proof/can-fail",
        f"{op.name} when {v.condition}{held}" + (f"  `{op.source}`" if op.source else ""),
        _WORDS.get(v.kind, "bound what goes into this line"),
        subject=_place(x),
        weight=2,
        data={**x.data(), "depends_on": list(v.parts)},
    )


def _unknown(lines: list[ByLine]) -> Iterable[Finding]:
    """Lines where something itself is not known; what only follows it is counted."""
    own = [x for x in lines if x.worst.after is None]
    for x in own[:_MAX_SHOWN]:
        op = x.worst.operation
        yield skipped(
            GROUP,
            "proof/unknown",
            f"{op.name}: {x.worst.condition}",
            subject=_place(x),
            data=x.data(),
        )
    rest = [*own[_MAX_SHOWN:], *(x for x in lines if x.worst.after is not None)]
    if rest:
        text = f"{len(rest)} more line{'s' if len(rest) != 1 else ''} not known, most because they follow the ones above"
        yield skipped(GROUP, "proof/unknown", text, data={"lines": [x.data() for x in rest]})


def _safe(found: Proof, lines: list[ByLine]) -> Finding:
    parts = []
    for phase in ("forward", "backward", "optimizer"):
        these = [v for v in found.verdicts if v.operation.phase == phase]
        num = sum(v.status == "safe" for v in these)
        if these:
            parts.append(f"{phase} {num} of {len(these)}")
    text = f"operators proved safe for all inputs in the box: {', '.join(parts) or 'none'}"
    return passed(GROUP, "proof/safe", text, data={"lines": [x.data() for x in lines]})


def _box_finding(found: Proof) -> Finding:
    box = found.box
    ranges = [f"{name} in [{lo:.4g}, {hi:.4g}]" for name, (lo, hi) in box.data.items()]
    reach = max(box.weights.values(), default=0.0)
    sizes = ", ".join(map(str, box.batch_sizes)) or "as captured"
    text = (
        f"{'; '.join(ranges[:8])}{' ...' if len(ranges) > 8 else ''}; weights as they are ± up to {reach:.3g} "
        f"(about {box.num_steps} steps at this rate); rows of a batch: {sizes}"
    )
    data = {
        "data": {k: list(v) for k, v in box.data.items()},
        "weights": dict(box.weights),
        "num_steps": box.num_steps,
        "batch_sizes": list(box.batch_sizes),
        "peak_bytes": found.peak_bytes,
        "seconds": round(found.seconds, 3),
    }
    return passed(GROUP, "proof/box", text, data=data)


def _place(x: ByLine) -> str:
    if x.file is None:
        return "outside of your code"
    shown = x.file.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{shown}:{x.line}"
