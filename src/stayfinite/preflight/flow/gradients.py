"""Checks gradients by depth, parameters without gradient, and the size of updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ..layers import Role, few, plain_values, roles
from ..probes import Seen, Subject
from ..records import Finding, failed, passed, warned

__all__ = ["judge_gradients", "judge_updates"]

GROUP = "forward"

LEAST_RATIO = 1e-6
"""Gradient of the earliest quarter of the layers over that of the last quarter (rms)."""
HOPELESS_RATIO = 1e-12
MOST_NORM = 1e4
LEAST_NORM = 1e-9
MOST_UPDATE = 0.3
LEAST_UPDATE = 6e-8
"""Half of float32's resolution: a smaller change is rounded away."""
LEAST_RMS = 1e-4
"""Weights below it are gates that start near zero: their ratio says nothing."""


def judge_gradients(
    subject: Subject, watched: Sequence[Seen], later: Seen, *, is_warm: bool
) -> list[Finding]:
    """Where gradients do not arrive, and how they change with depth."""
    held = {id(p) for o in subject.optimizers for g in o.param_groups for p in g["params"]}
    trained = [r for r in roles(subject) if r.parameter.requires_grad and id(r.parameter) in held]
    if not trained:
        return []
    looks = [*watched, later]
    found = _missing(trained, looks)
    if is_warm:
        found += _zero(trained, looks)
    found += _by_depth(trained, later)
    found += _norm(subject, watched)
    if not any(f.check == "gradients/arrive" for f in found):
        found.insert(0, passed(GROUP, "gradients/arrive", f"at all {len(trained)} parameters"))
    return found


def _missing(trained: list[Role], looks: Sequence[Seen]) -> list[Finding]:
    none = [r for r in trained if all(s.param_grads.get(r.name) is None for s in looks)]
    found = []
    for module, roles_of in _by_module(none).items():
        seen = f"no gradient in {len(looks)} batches: {', '.join(r.name for r in roles_of[:4])}"
        action = "use it in the loss, remove it, or freeze it; look for a detach() or no_grad()"
        found.append(warned(GROUP, "gradients/arrive", seen, action, subject=module, weight=6))
    return few(found)


def _zero(trained: list[Role], looks: Sequence[Seen]) -> list[Finding]:
    zero = [r for r in trained if all(s.param_grads.get(r.name) == 0 for s in looks)]
    found = []
    for module, roles_of in _by_module(zero).items():
        seen = (
            f"gradient exactly 0, also after real steps: {', '.join(r.name for r in roles_of[:4])}"
        )
        action = (
            "look for dead units, weights that start at 0 on both sides, or a round() behind it"
        )
        found.append(warned(GROUP, "gradients/arrive", seen, action, subject=module, weight=6))
    return few(found)


def _by_module(chosen: list[Role]) -> dict[str, list[Role]]:
    found: dict[str, list[Role]] = {}
    for role in chosen:
        found.setdefault(role.name.rpartition(".")[0] or role.name, []).append(role)
    return found


def _by_depth(trained: list[Role], seen: Seen) -> list[Finding]:
    depth = {layer.module: layer.depth for layer in seen.layers}
    rms = []
    for role in trained:
        norm = seen.param_grads.get(role.name)
        module = role.name.rpartition(".")[0]
        if role.kind == "matrix" and norm and math.isfinite(norm) and module in depth:
            rms.append((depth[module], role.name, norm / role.parameter.numel() ** 0.5))
    rms.sort()
    if len(rms) < 4:
        return []
    quarter = max(1, len(rms) // 4)
    first, last = max(v for *_, v in rms[:quarter]), max(v for *_, v in rms[-quarter:])
    ratio = first / last
    text = f"rms {first:.2g} in the first layers, {last:.2g} in the last ({len(rms)} matrices)"
    more = {"subject": rms[0][1], "weight": 5, "data": {"ratio": ratio}}
    if ratio < LEAST_RATIO:
        report = failed if ratio < HOPELESS_RATIO else warned
        action = "add residual connections or normalization, or use ReLU-like units with He's init"
        return [report(GROUP, "gradients/by-depth", f"vanish: {text}", action, **more)]
    if ratio > 1 / LEAST_RATIO:
        report = failed if ratio > 1 / HOPELESS_RATIO else warned
        action = "initialize the layers smaller, add normalization, and clip the gradient norm"
        return [report(GROUP, "gradients/by-depth", f"explode: {text}", action, **more)]
    return [passed(GROUP, "gradients/by-depth", text, data={"ratio": ratio})]


def _norm(subject: Subject, watched: Sequence[Seen]) -> list[Finding]:
    norms = [s.grad_norm for s in watched if s.grad_norm is not None]
    if not norms:
        return []
    largest = max(norms)
    grads = {n: g for s in watched for n, g in s.param_grads.items() if g}
    culprit = max(grads, key=lambda n: grads[n]) if grads else ""
    text = f"{min(norms):.3g} to {largest:.3g} over {len(norms)} batches"
    if subject.clip_norm is not None:
        text += f", clipped to {subject.clip_norm:g}"
    more = {"subject": culprit, "weight": 4, "data": {"norms": norms}}
    if largest > MOST_NORM and (subject.clip_norm is None or largest > 1 / HOPELESS_RATIO):
        action = "average the loss instead of summing it, normalize the targets, or clip to 1.0"
        return [warned(GROUP, "gradients/norm", text, action, **more)]
    if 0 < largest < LEAST_NORM:
        action = "scale the loss up: it is averaged over too much, or multiplied by too little"
        return [warned(GROUP, "gradients/norm", text, action, **more)]
    return [passed(GROUP, "gradients/norm", text)]


def judge_updates(subject: Subject, steps: Sequence[Seen]) -> list[Finding]:
    """Norm of a step's update over the norm of the weight, for matrices and embeddings."""
    ratios: dict[str, float] = {}
    for role in roles(subject):
        values = plain_values(role.parameter)
        if role.kind not in ("matrix", "embedding") or values is None:
            continue
        if float(values.square().mean()) ** 0.5 < LEAST_RMS:
            continue
        moves = [s.updates[role.name] for s in steps if role.name in s.updates]
        if moves and any(s.param_grads.get(role.name, 1.0) for s in steps):
            ratios[role.name] = median(moves)
    moving = {n: r for n, r in ratios.items() if r > 0}
    lr = max((r for s in steps for r in s.lrs), default=0.0)
    if ratios and not moving and lr > 0 and not subject.schedulers:
        text = f"no weight moved in {len(steps)} steps at lr {lr:g}"
        action = "raise the learning rate: float32 rounds such a step away"
        return [warned(GROUP, "gradients/update-ratio", text, action, weight=6)]
    if not moving:
        return []
    middle = median(moving.values())
    fastest = max(moving, key=lambda n: moving[n])
    text = f"a step moves the weights by {middle:.1e} of their norm at lr {lr:g}"
    why = "about 1e-3 is usual (Stanford's course CS231n)"
    more = {"subject": fastest, "why": why, "data": {"median": middle}}
    if middle > MOST_UPDATE:
        action = f"lower the learning rate to about {lr * 0.01 / middle:.1g}"
        return [warned(GROUP, "gradients/update-ratio", text, action, weight=6, **more)]
    if moving[fastest] > 1:
        text = (
            f"a step moves {fastest} by {moving[fastest]:.2g} of its norm (the others {middle:.1e})"
        )
        action = "give this parameter a smaller learning rate, or initialize it larger"
        return [warned(GROUP, "gradients/update-ratio", text, action, weight=5, **more)]
    if middle < LEAST_UPDATE and not subject.schedulers:
        action = (
            f"raise the learning rate to about {lr * 1e-3 / middle:.1g}: float32 rounds this away"
        )
        return [warned(GROUP, "gradients/update-ratio", text, action, weight=5, **more)]
    return [passed(GROUP, "gradients/update-ratio", text, why=why, data={"median": middle})]
