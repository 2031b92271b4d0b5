"""Checks activations by depth: exploding, vanishing, dead or saturated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ..layers import few
from ..probes import LayerSeen
from ..records import Finding, failed, passed, warned

__all__ = ["judge_activations", "judge_dead", "judge_saturated", "leaves_of"]

GROUP = "forward"

LARGE = 1e4
HOPELESS = 1e15
"""Squared, it is near the end of float32."""
SMALL = 1e-6
DEAD_SHARE = 0.5
ALMOST_ALL_DEAD = 0.95
SATURATED = 0.9
"""Mean square of a tanh's output (a sigmoid's, stretched to -1..1): 1 when every unit is stuck."""


def leaves_of(layers: Sequence[LayerSeen]) -> list[LayerSeen]:
    """The layers without the containers round them, in the order of the forward."""
    paths = [layer.module for layer in layers]
    parents = {p for path in paths for p in _ancestors(path)}
    return [layer for layer in layers if layer.module not in parents or len(layers) == 1]


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(len(parts))] if path else []


def judge_activations(layers: Sequence[LayerSeen]) -> list[Finding]:
    """The scale at the end of the network, and the layer that made it so."""
    leaves = [x for x in leaves_of(layers) if x.std > 0]
    if not leaves:
        return []
    tail = leaves[-max(1, len(leaves) // 4) :]
    end = median(x.std for x in tail)
    first = f"module {leaves[0].module}" if leaves[0].module else "the model"
    seen = f"std {leaves[0].std:.3g} after {first}, {end:.3g} at the end"
    if SMALL <= end <= LARGE:
        return [passed(GROUP, "forward/scale", seen)]
    grows = end > LARGE
    culprit = _steepest(leaves, grows)
    more = {"subject": culprit.module, "weight": 5, "data": {"std_at_end": end}}
    if culprit is leaves[0] and grows and culprit.std > LARGE:
        action = "normalize the input: it leaves the first layer this large already"
        return [warned(GROUP, "forward/scale", seen, action, **more)]
    if grows:
        action = "put a normalization after this layer, or initialize it smaller"
        report = failed if end > HOPELESS else warned
        return [report(GROUP, "forward/scale", f"explodes: {seen}", action, **more)]
    action = "put a normalization after this layer, or initialize it larger"
    return [warned(GROUP, "forward/scale", f"fades: {seen}", action, **more)]


def _steepest(leaves: Sequence[LayerSeen], grows: bool) -> LayerSeen:
    """The layer that changes the scale most, against the layer before it (the input counts as 1)."""
    best, most, before = leaves[0], -math.inf, 1.0
    for layer in leaves:
        change = math.log(layer.std / before) * (1 if grows else -1)
        if change > most:
            best, most = layer, change
        before = layer.std
    return best


def judge_dead(watched: Sequence[Sequence[LayerSeen]]) -> list[Finding]:
    """Rectifiers whose units are zero for every sample of every batch."""
    shares: dict[str, float] = {}
    for layers in watched:
        for layer in layers:
            if "relu" in layer.kind.lower() and layer.num_units > 1:
                share = layer.dead_units / layer.num_units
                shares[layer.module] = min(share, shares.get(layer.module, 1.0))
    if not shares:
        return []
    found = []
    for module, share in shares.items():
        if share <= DEAD_SHARE:
            continue
        report = failed if share >= ALMOST_ALL_DEAD else warned
        seen = f"{share:.0%} of its units are zero for every sample of {len(watched)} batches"
        action = "start the bias of the layer before it at 0, and initialize that layer as He 2015"
        why = "a unit that is never active gets no gradient and stays dead"
        found.append(report(GROUP, "forward/dead", seen, action, subject=module, why=why, weight=5))
    worst = max(shares.values())
    return few(found) or [passed(GROUP, "forward/dead", f"at most {worst:.0%} of a layer's units")]


def judge_saturated(layers: Sequence[LayerSeen]) -> list[Finding]:
    """Sigmoids and tanhs that are stuck at their ends."""
    found, seen_any = [], False
    for layer in layers:
        if layer.kind not in ("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid", "Softsign"):
            continue
        seen_any = True
        square = layer.mean**2 + layer.std**2
        if layer.kind.endswith("igmoid"):
            square = 4 * square - 4 * layer.mean + 1
        if square > SATURATED:
            seen = f"{layer.kind} is stuck at its ends (mean square {square:.3f} of at most 1)"
            action = "initialize the layer before it smaller, or normalize what goes into it"
            found.append(
                warned(GROUP, "forward/saturated", seen, action, subject=layer.module, weight=4)
            )
    if not seen_any:
        return []
    return few(found) or [passed(GROUP, "forward/saturated", "none")]
