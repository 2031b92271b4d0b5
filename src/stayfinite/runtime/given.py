"""Checks the models and optimizers that a guard is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UsageError

__all__ = ["as_list", "check_models", "check_optimizers", "why_loop_only"]


def check_models(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    wrong = [type(m).__name__ for m in models.values() if not isinstance(m, nn.Module)]
    if wrong or not models:
        raise UsageError(
            f"`model` must be a torch.nn.Module or a dict of them, got {', '.join(wrong) or 'nothing'}"
        )
    return models


def as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def check_optimizers(models: Mapping[str, nn.Module], given: Any) -> list[Optimizer]:
    optimizers = as_list(given)
    for i, each in enumerate(optimizers):
        if not isinstance(each, Optimizer) and not hasattr(each, "param_groups"):
            place = f"[{i}]" if isinstance(given, (list, tuple)) else ""
            raise UsageError(
                f"`optimizer{place}` must be a torch optimizer, got {type(each).__name__}"
            )
    if not optimizers:
        raise UsageError("`optimizer` must be a torch optimizer or a list of them, got none")
    owned = {id(p) for m in models.values() for p in m.parameters()}
    moved = {id(p) for p in _moved(optimizers)}
    if not owned & moved and not _are_masters(models, optimizers):
        names = ", ".join(type(m).__name__ for m in models.values())
        who = "optimizer moves" if len(optimizers) == 1 else "optimizers move"
        raise UsageError(
            f"the {who} {len(moved)} parameters and {names} has {len(owned)}, but they "
            "share none; build the optimizer from this model's .parameters() (after any "
            f"copy, .to() or wrapping){_masters_rule(models)}"
        )
    return optimizers


def _moved(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    return [p for o in optimizers for g in o.param_groups for p in g["params"]]


def _are_masters(models: Mapping[str, nn.Module], optimizers: Iterable[Optimizer]) -> bool:
    """Whether the optimizers have one float32 copy of each trained parameter of a half-precision model.

    Copies in the model's own precision do not count: then the model was replaced after its optimizer was made.
    """
    trained = [p for m in models.values() for p in m.parameters() if p.requires_grad]
    copies = _moved(optimizers)
    is_wider = any(p.element_size() < 4 for p in trained) and all(
        c.is_floating_point() and c.element_size() >= 4 for c in copies
    )
    return is_wider and sorted(p.shape for p in trained) == sorted(c.shape for c in copies)


def _masters_rule(models: Mapping[str, nn.Module]) -> str:
    if all(p.element_size() >= 4 for m in models.values() for p in m.parameters()):
        return ""
    return ", or from one float32 copy of the same shape for each parameter that is trained"


def why_loop_only(
    models: Mapping[str, nn.Module], optimizers: list[Optimizer], schedulers: list[Any]
) -> str | None:
    """The reason why `guard.step` cannot run this training; None if it can."""
    if len(optimizers) > 1:
        return f"there are {len(optimizers)} optimizers"
    if len(schedulers) > 1:
        return f"there are {len(schedulers)} schedulers"
    owned = {id(p) for m in models.values() for p in m.parameters()}
    if not any(id(p) in owned for p in _moved(optimizers)):
        return "this one moves copies of the model's parameters, which only your loop can fill"
    return None
