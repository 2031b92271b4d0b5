"""Compares the learning rates in a checkpoint and a config, and says which will be used."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, UsageError
from ..parsing import parse_toml
from .geometry import layout_of
from .judge import finding
from .limits import Limits
from .measure import dtype_of, typed_blocks
from .readers.arrays import array_tensor
from .records import LearningRates, TensorFinding
from .values import ArrayRef, Opaque, TensorRef

__all__ = ["compare", "find_rates", "merge_rates", "read_config_rate"]

_NAMES = (
    "lr",
    "learning_rate",
    "base_lr",
    "max_lr",
    "peak_lr",
    "init_lr",
    "lr_max",
    "learningrate",
)
_MAX_DEPTH = 8
_MAX_WIDTH = 1000
_MAX_VISITED = 100_000
_NODES = (dict, list, tuple, Opaque)


def find_rates(root: Any, limits: Limits, label: str = "") -> LearningRates:
    """The learning rates in a tree: parameter groups and schedulers, wherever they are.

    `label` is the dotted name of the tree: distributed checkpoints keep each entry by itself.
    """
    *above, last = label.split(".")
    if "param_groups" in above:
        root = {"param_groups": [{last: root}]}
    elif label:
        root = {last: root}
    groups: list[dict[Any, Any]] = []
    schedulers: list[dict[Any, Any]] = []
    for node in _dicts(root, limits):
        found = node.get("param_groups")
        if isinstance(found, (list, tuple)):
            groups.extend(g for g in found if isinstance(g, dict))
        elif isinstance(
            found, dict
        ):  # one group for each name, as distributed checkpoints have them
            groups.extend(g for g in found.values() if isinstance(g, dict))
        if "base_lrs" in node or "_last_lr" in node:
            schedulers.append(node)
    return LearningRates(
        optimizer=_numbers([g.get("lr") for g in groups]),
        initial=_numbers([g.get("initial_lr") for g in groups]),
        peak=_numbers([g.get("max_lr") for g in groups]),
        scheduler=_numbers([v for s in schedulers for v in _as_list(s.get("_last_lr"))]),
        base=_numbers([v for s in schedulers for v in _as_list(s.get("base_lrs"))]),
    )


def _dicts(root: Any, limits: Limits) -> Iterator[dict[Any, Any]]:
    seen: set[int] = set()
    stack = [(root, 0)]
    while stack and len(seen) < _MAX_VISITED:
        node, depth = stack.pop()
        if not isinstance(node, _NODES) or id(node) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(node))
        limits.tick()
        if isinstance(node, Opaque):
            inner = [node.state, *(v for _, v in node.items[:_MAX_WIDTH])]
        elif isinstance(node, dict):
            yield node
            inner = [v for v in node.values() if isinstance(v, _NODES)]
        else:
            inner = list(node) if len(node) < _MAX_WIDTH else []
        stack.extend((v, depth + 1) for v in inner)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _numbers(values: list[Any]) -> tuple[float, ...]:
    return tuple(n for n in map(number_of, values) if n is not None)


def number_of(value: Any) -> float | None:
    """A plain number, or the single value of a small tensor or array."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e300 or isinstance(value, float) else None
    if isinstance(value, ArrayRef):
        value = array_tensor(value)
    if isinstance(value, TensorRef) and math.prod(value.size) == 1 and value.storage is not None:
        return _tensor_number(value)
    return None


def _tensor_number(ref: TensorRef) -> float | None:
    elements = dtype_of(ref.dtype)
    if (
        ref.storage is None
        or ref.storage.blob is None
        or elements is None
        or elements.components > 1
    ):
        return None
    start = ref.offset + ref.storage.view_offset
    layout = layout_of(start, ref.size, ref.stride, ref.storage.blob.size // elements.itemsize)
    for _, flat in typed_blocks(ref.storage.blob, layout, elements, 1):
        return float(flat[0].item())
    return None


def merge_rates(parts: list[LearningRates]) -> LearningRates:
    """The rates of several files of one checkpoint."""

    def join(name: str) -> tuple[float, ...]:
        return tuple(v for p in parts for v in getattr(p, name))

    return LearningRates(
        optimizer=join("optimizer"),
        initial=join("initial"),
        peak=join("peak"),
        scheduler=join("scheduler"),
        base=join("base"),
    )


def compare(rates: LearningRates, wanted: float, source: str) -> TensorFinding | None:
    """A finding when a resume from these rates would not train with the rate that is wanted.

    >>> compare(LearningRates(optimizer=(1e-4,)), 1e-4, "--lr") is None
    True
    >>> print(compare(LearningRates(optimizer=(5e-4,)), 1e-4, "--lr").message)
    --lr says lr 0.0001; the optimizer in the file has lr 0.0005. A resume will train with 0.0005
    """
    anchors = rates.peak or rates.initial or rates.base or rates.optimizer
    used = rates.optimizer or rates.scheduler
    if not anchors or any(math.isclose(a, wanted, rel_tol=1e-6) for a in anchors):
        return None
    parts = []
    if rates.optimizer:
        extra = [
            f"{label} {_show(v)}"
            for label, v in (("initial_lr", rates.initial), ("max_lr", rates.peak))
            if v
        ]
        parts.append(
            f"the optimizer in the file has lr {_show(rates.optimizer)}"
            + "".join(f", {e}" for e in extra)
        )
    if rates.base or rates.scheduler:
        shown = [
            f"{label} {_show(v)}"
            for label, v in (("base_lrs", rates.base), ("last lr", rates.scheduler))
            if v
        ]
        parts.append(f"the scheduler has {', '.join(shown)}")
    has_schedule = bool(rates.base or rates.scheduler or rates.peak)
    then = f", then follow a schedule built on {_show(anchors)}" if has_schedule else ""
    return finding(
        "lr_mismatch",
        f"{source} says lr {wanted:g}; {'; '.join(parts)}. "
        f"A resume will train with {_show(used) or 'the rate of the script'}{then}",
        role="scheduler" if has_schedule else "optimizer",
        action="loading overrides the config: after `load_state_dict`, set `lr` (and `initial_lr`) "
        "of every param group and build the scheduler anew, or do not load its state",
    )


def _show(values: tuple[float, ...]) -> str:
    distinct = list(dict.fromkeys(f"{v:.6g}" for v in values))
    return ", ".join(distinct[:4]) + (" …" if len(distinct) > 4 else "")


def read_config_rate(path: Path) -> tuple[float, str]:
    """The learning rate in a config file (.json, .yaml, .toml, .py), and the key it stood under.

    A Python config is parsed, never run.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the config {path}: {e}") from None
    try:
        tree = _parse(path, text)
    except (ValueError, SyntaxError, RecursionError) as e:
        raise UsageError(f"the config {path} cannot be parsed: {e}") from None
    found = sorted(
        _rates_in(tree, (), 0), key=lambda f: (len(f[0]), _NAMES.index(f[0][-1].lower()))
    )
    if not found:
        names = ", ".join(_NAMES)
        raise UsageError(f"no learning rate in {path}: looked for {names}\ntry: pass it with --lr")
    keys, value = found[0]
    return value, ".".join(keys)


def _parse(path: Path, text: str) -> Any:
    suffix = path.suffix.lower()
    if suffix == ".json":
        return json.loads(text)
    if suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError:
            raise MissingExtraError("reading a YAML config", "yaml") from None
        try:
            return yaml.safe_load(text)  # type: ignore[no-untyped-call]
        except yaml.YAMLError as e:
            raise ValueError(str(e).splitlines()[0]) from None
    if suffix == ".toml":
        return parse_toml(text)
    if suffix == ".py":
        return _python_constants(ast.parse(text))
    raise UsageError(f"a config must be .json, .yaml, .yml, .toml or .py, got {path.name}")


def _python_constants(tree: ast.AST) -> dict[str, Any]:
    """Names that are given a literal value, at any level: constants, attributes, arguments."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(t.id, node.value) for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs = [(node.target.id, node.value)]
        elif isinstance(node, ast.keyword) and node.arg:
            pairs = [(node.arg, node.value)]
        for name, value in pairs:
            try:
                found.setdefault(name, ast.literal_eval(value) if value is not None else None)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
    return found


def _rates_in(
    node: Any, path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], float]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, dict):
        for key, value in node.items():
            name = str(key)
            if name.lower() in _NAMES:
                number = _config_number(value)
                if number is not None:
                    yield (*path, name), number
            yield from _rates_in(value, (*path, name), depth + 1)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _rates_in(value, (*path, str(i)), depth + 1)


def _config_number(value: Any) -> float | None:
    """YAML reads `1e-4` as text; it is meant as a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
