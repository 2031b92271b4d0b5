"""The ladder as text: a table, the verdict, and how to keep the change."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..report.text import number, short_path
from .records import Change, LadderReport, Outcome

__all__ = ["ended", "render"]

_KINDS = {"flag": "flag", "env": "environment", "knob": "stayfinite's own"}
_KNOB_HINTS = {
    "autocast": "turn autocast and the GradScaler off in the script",
    "precision": "compute in float32: no `.half()`, no `bfloat16()`, no autocast",
    "clip": "call `torch.nn.utils.clip_grad_norm_(model.parameters(), {value})` before `optimizer.step()`",
    "lr": "multiply the learning rate by {factor}",
    "init_scale": "`GradScaler(init_scale={value})`",
    "growth_interval": "`GradScaler(growth_interval={value})`",
    "scaler": "`GradScaler(enabled=False)`",
    "skip_bad_samples": "clean the data, or train with `stayfinite run --policy sanitize`",
}


def render(report: LadderReport) -> str:
    """The whole report as plain text."""
    base = report.baseline
    lines = [f"stayfinite ladder: {report.target}"]
    if base is not None:
        lines.append(f"  unchanged: {_of_baseline(base)}")
    lines += [f"  note: {note}" for note in report.notes]
    if not report.has_failed:
        return "\n".join([*lines, "", *_nothing(report)])
    lines.append(f"  a change survives if step {report.goal} is finished and everything is finite")
    lines += ["", *_table(report.rungs, base)]
    if report.sets:
        lines += ["", "  together", *(f"  {o.label}: {ended(o, base)}" for o in report.sets)]
    return "\n".join([*lines, "", *_verdict(report)])


def ended(outcome: Outcome, base: Outcome | None = None) -> str:
    """The result of a run, in short; even shorter if it ended like the unchanged run `base`.

    >>> ended(Outcome(status="survived", step=22, loss=0.93))
    'survived to step 22, loss 0.93'
    """
    loss = f", loss {number(outcome.loss)}" if outcome.loss is not None else ""
    if outcome.status == "survived":
        is_end = " (the script's end)" if outcome.text else ""
        if outcome.step is None:
            return f"survived without a step{is_end}"
        return f"survived to step {outcome.step}{is_end}{loss}"
    if outcome.status == "failed":
        if base is not None and _scene(outcome) == _scene(base):
            return f"failed at step {outcome.step}: the same operator, line and cause"
        where = [w for w in (outcome.op, _place(outcome)) if w]
        cause = f" ({outcome.cause})" if outcome.cause else ""
        where_text = ", ".join(where) or outcome.text
        return f"failed at step {outcome.step}: {where_text}{cause}"
    if outcome.status == "diverging":
        return f"diverging, still finite at step {outcome.step}: {outcome.text}"
    if outcome.status == "idle":
        return f"no effect: {outcome.text}"
    at = f" at step {outcome.step}" if outcome.step is not None else ""
    word = {"crashed": "crashed", "timeout": "timed out"}[outcome.status]
    return f"{word}{at}: {outcome.text}"


def _scene(outcome: Outcome) -> tuple[object, ...]:
    return (outcome.status, outcome.op, outcome.file, outcome.line, outcome.cause)


def _place(outcome: Outcome) -> str:
    return f"{_brief(outcome.file)}:{outcome.line}" if outcome.file else ""


def _brief(path: str) -> str:
    """Short enough for a table; the verdict has the whole path."""
    short = short_path(path)
    return short if len(short) <= 32 else os.path.basename(short)


def _of_baseline(base: Outcome) -> str:
    if base.status == "failed":
        loss = f"; the loss before it was {number(base.loss)}" if base.loss is not None else ""
        return f"{base.text or ended(base)}{loss}"
    return ended(base)


def _table(outcomes: Sequence[Outcome], base: Outcome | None) -> list[str]:
    rows = [("change", "where", "outcome")]
    rows += [(o.label, " + ".join(_where(c) for c in o.changes), ended(o, base)) for o in outcomes]
    widths = [min(48, max(len(row[i]) for row in rows)) for i in (0, 1)]
    return [f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c}" for a, b, c in rows]


def _where(change: Change) -> str:
    move = f"{change.before if change.before is not None else 'not set'} -> {change.after}"
    if change.kind == "knob":
        return _KINDS["knob"]
    if change.file is not None:
        return f"{_brief(change.file)}: {move}"
    return f"{_KINDS[change.kind]}: {move}"


def _nothing(report: LadderReport) -> list[str]:
    base = report.baseline
    assert base is not None
    if base.status == "timeout":
        return [
            "the unchanged run did not fail before the time limit: nothing to get past",
            "  try: a longer --timeout, or --after-incident DIR with an incident of `stayfinite run`",
        ]
    if base.step is None:
        return [
            "the unchanged run takes no step: nothing to get past",
            "  try: a script that calls backward() and then step() of its optimizer",
        ]
    return [
        f"the unchanged run does not fail (to step {base.step}): nothing to get past",
        "  try: a later --until-step, or the arguments and the seed with which it fails",
    ]


def _verdict(report: LadderReport) -> list[str]:
    alive = report.survivors
    if not report.smallest:
        tried = ", nor do all of them together" if report.sets else ""
        base = report.baseline
        line = f"the line itself, {_place(base)}; " if base is not None and base.file else ""
        return [
            f"no change survives step {report.failing_step}{tried}",
            f"  try: {line}`stayfinite run` explains the failure and tries fixes on it",
        ]
    if alive:
        first, others = alive[0], alive[1:]
        lines = [f"survives: {first.label}"]
        if others:
            lines[0] += f" (also: {', '.join(o.label for o in others)})"
    else:
        labels = " + ".join(c.label for c in report.smallest)
        lines = [f"no single change survives; the smallest set that does: {labels}"]
    lines += [f"  to keep it: {_keeping(c)}" for c in report.smallest]
    return lines


def _keeping(change: Change) -> str:
    was = f" (was {change.before})" if change.before is not None else ""
    if change.kind == "flag":
        option = max(change.flag["strings"], key=len)
        if change.flag["kind"] in ("on", "off"):
            return f"set {change.key} to {change.after} with {option}{was}"
        sign = "=" if change.flag["kind"] == "token" else " "
        return f"{option}{sign}{change.after}{was}"
    if change.kind == "config":
        file = short_path(change.file or "")
        sign = " =" if file.endswith((".py", ".toml")) else ":"
        return f"{change.key}{sign} {change.after} in {file}{was}"
    if change.kind == "env":
        return f"{change.key}={change.after} in the environment{was}"
    hint = _KNOB_HINTS[change.key]
    return hint.format(value=change.after, factor=change.after.removesuffix("x"))
