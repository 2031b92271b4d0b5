"""Finds parameters that no optimizer trains, that two train, or that are not in the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor, nn

from ...runtime.batches import named_tensors
from ..layers import few
from ..layers_leaves import reachable_leaves
from ..probes import Checks, Probe, Subject
from ..records import Finding, failed, passed, skipped, warned

__all__ = ["ownership"]

GROUP = "init"


def ownership(subject: Subject) -> Checks:
    """Every tensor that gets a gradient is trained by exactly one optimizer."""
    registered = {id(p): name for name, p in subject.parameters()}
    held = Counter(id(p) for o in subject.optimizers for g in o.param_groups for p in g["params"])
    found = _duplicates(subject, registered)
    if not subject.optimizers:
        return found
    found += _nothing_to_train(subject)
    stale = _stale(subject, registered, held)
    found += stale
    loose = _loose(subject, held)
    # What the steps so far have left there: a loop that cannot be probed shows at least this.
    reached = {name for name, t in loose.items() if t.grad is not None}
    if loose and subject.batches and not stale:
        handles = [t.register_hook(_noter(n, reached)) for n, t in loose.items()]
        try:
            yield Probe(batch=subject.batches[0], name="who gets a gradient")
        finally:
            for handle in handles:
                handle.remove()
    outside = {id(t) for t in reachable_leaves(subject.roots).values()}
    if not stale:
        is_probed = bool(subject.batches) or not loose
        found += _untrained(loose, reached, set(registered) | outside, is_probed)
    found += _unsaved(subject, registered, held)
    return found


def _noter(name: str, reached: set[str]) -> Any:
    def note(grad: Tensor) -> None:
        reached.add(name)

    return note


def _duplicates(subject: Subject, registered: dict[int, str]) -> list[Finding]:
    owners: dict[int, list[str]] = {}
    for i, optimizer in enumerate(subject.optimizers):
        for j, group in enumerate(optimizer.param_groups):
            for p in group["params"]:
                owners.setdefault(id(p), []).append(f"optimizer {i} group {j}")
    found = []
    for key, places in owners.items():
        if len(places) > 1:
            found.append(
                warned(
                    GROUP,
                    "init/duplicate",
                    f"is trained {len(places)} times a step: {', '.join(places)}",
                    "give it to one group of one optimizer",
                    subject=registered.get(key, "an unregistered tensor"),
                    weight=4,
                )
            )
    if not owners:
        return []
    return few(found) or [passed(GROUP, "init/duplicate", f"{len(owners)} tensors, each once")]


def _nothing_to_train(subject: Subject) -> list[Finding]:
    parameters = dict(subject.parameters())
    wanted = [n for n, p in parameters.items() if p.requires_grad]
    if parameters and not wanted and not any(_trainable(subject)):
        return [
            failed(
                GROUP,
                "init/trainable",
                f"none of {len(parameters)} parameters requires grad",
                "call requires_grad_(True) on what is to be trained",
                weight=10,
            )
        ]
    frozen = len(parameters) - len(wanted)
    seen = f"{len(wanted)} parameters to train" + (f", {frozen} frozen" if frozen else "")
    return [passed(GROUP, "init/trainable", seen)]


def _trainable(subject: Subject) -> list[Tensor]:
    groups = [g for o in subject.optimizers for g in o.param_groups]
    return [p for g in groups for p in g["params"] if p.requires_grad]


def _stale(subject: Subject, registered: dict[int, str], held: Counter[int]) -> list[Finding]:
    """The optimizer was made before the layers were replaced: it trains what nobody uses."""
    strangers = [tuple(p.shape) for p in _trainable(subject) if id(p) not in registered]
    found = []
    for name, p in subject.parameters():
        if p.requires_grad and id(p) not in held and tuple(p.shape) in strangers:
            strangers.remove(tuple(p.shape))
            found.append(
                failed(
                    GROUP,
                    "init/stale-optimizer",
                    f"the optimizer holds another tensor of shape {tuple(p.shape)} instead",
                    "make the optimizer after the model is complete (moved, replaced, wrapped)",
                    subject=name,
                    weight=9,
                )
            )
    return few(found)


def _loose(subject: Subject, held: Counter[int]) -> dict[str, Tensor]:
    """Leaves that require grad and that no optimizer holds, by name."""
    batch = {id(t) for b in subject.batches for _, t in named_tensors(b)}
    loose: dict[str, Tensor] = {}
    loose |= {n: p for n, p in subject.parameters() if p.requires_grad and id(p) not in held}
    known = {id(p) for _, p in subject.parameters()} | batch
    for path, tensor in reachable_leaves({**subject.models, **subject.roots}).items():
        if id(tensor) not in known and id(tensor) not in held:
            known.add(id(tensor))
            loose[path] = tensor
    return loose


def _untrained(
    loose: dict[str, Tensor], reached: set[str], proper: set[int], is_probed: bool
) -> list[Finding]:
    """`proper` are the parameters of a module, of the model or of one beside it (a loss)."""
    found, foreign = [], []
    for name, tensor in loose.items():
        if name not in reached:
            continue
        shape = tuple(tensor.shape)
        if isinstance(tensor, nn.Parameter) and id(tensor) in proper:
            action = "pass it to the optimizer, or freeze it: requires_grad_(False)"
            seen = f"gets a gradient but no optimizer holds it, shape {shape}"
            found.append(warned(GROUP, "init/not-optimized", seen, action, subject=name, weight=5))
        else:
            action = "make it an nn.Parameter of the module, and pass it to the optimizer"
            what = "a plain tensor"
            if isinstance(tensor, nn.Parameter):
                action = "hold it in an nn.ModuleList, nn.ModuleDict or nn.ParameterList"
                what = "a parameter that the model does not know,"
            seen = f"{what} of shape {shape} that gets a gradient, but nobody trains it"
            why = "`.to()`, `state_dict()` and the optimizer do not see it"
            foreign.append(
                failed(GROUP, "init/unregistered", seen, action, subject=name, why=why, weight=8)
            )
    if not found and not foreign and not is_probed:
        return [skipped(GROUP, "init/unregistered", "who gets a gradient could not be tried")]
    idle = len(loose) - len(found) - len(foreign)
    seen = "every tensor with a gradient is trained" + (f"; {idle} others get none" if idle else "")
    return few(foreign) + few(found) or [passed(GROUP, "init/unregistered", seen)]


def _unsaved(subject: Subject, registered: dict[int, str], held: Counter[int]) -> list[Finding]:
    found = [
        warned(
            GROUP,
            "init/unsaved",
            f"is trained but is no parameter of the model, shape {tuple(tensor.shape)}",
            "make it an nn.Parameter of the module: state_dict() leaves it out",
            subject=path,
            weight=4,
        )
        for path, tensor in reachable_leaves(subject.models).items()
        if id(tensor) in held and id(tensor) not in registered
    ]
    return few(found)
