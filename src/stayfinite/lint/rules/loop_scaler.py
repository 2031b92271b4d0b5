"""A GradScaler that is used incompletely."""

from __future__ import annotations

import ast

from ..context import Context, Event
from .registry import end_of_function


def _of(ctx: Context, kind: str) -> list[Event]:
    return [e for e in ctx.events if e.kind == kind]


def _is_scaler(name: str) -> bool:
    return "scaler" in name.rpartition(".")[2].lower()


def _scaled_backward(ctx: Context) -> list[Event]:
    """`scaler.scale(loss).backward()`."""
    return [
        e
        for e in _of(ctx, "backward")
        if isinstance(e.node.func, ast.Attribute)
        and isinstance(e.node.func.value, ast.Call)
        and isinstance(e.node.func.value.func, ast.Attribute)
        and e.node.func.value.func.attr == "scale"
    ]


@end_of_function
def clip_before_unscale(ctx: Context) -> None:
    clips = _of(ctx, "clip")
    if not clips or not _scaled_backward(ctx):
        return
    unscaled = _of(ctx, "unscale")
    for clip in clips:
        if any(e.node.lineno < clip.node.lineno for e in unscaled):
            continue
        if _is_alternative(clip, _scaled_backward(ctx)):
            continue
        ctx.report(
            "SF201",
            clip.node,
            "the gradients are still multiplied by the loss scale",
            remedy="unscale_first",
        )


def _is_alternative(clip: Event, scaled: list[Event]) -> bool:
    """Whether the clipping is in the branch without a scaler."""
    return not any(set(s.tests) <= set(clip.tests) for s in scaled) and bool(clip.tests)


@end_of_function
def step_without_scaler(ctx: Context) -> None:
    scaled = _scaled_backward(ctx)
    steps = _of(ctx, "step")
    if not scaled or any(_is_scaler(e.receiver) for e in steps):
        return
    if any(e.kind == "unscale" for e in ctx.events) or len(_of(ctx, "backward")) > len(scaled):
        return
    for step in steps:
        if "optim" in step.receiver.lower() or step.receiver.lower().endswith("opt"):
            ctx.report(
                "SF202",
                step.node,
                "it applies gradients that are multiplied by the loss scale",
                remedy="scaler_step",
            )


@end_of_function
def update_missing(ctx: Context) -> None:
    steps = [e for e in _of(ctx, "step") if _is_scaler(e.receiver) and e.node.args]
    if not steps or any(_is_scaler(e.receiver) for e in _of(ctx, "update")):
        return
    if not _scaled_backward(ctx):
        return
    ctx.report(
        "SF203",
        steps[-1].node,
        "without `update` the scale never falls after an overflow: every later step is skipped",
        remedy="scaler_update",
    )
