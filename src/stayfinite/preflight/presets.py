"""`--preset`: the same config with safer figures, written beside the old one, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .config_names import number_of, quantity_of
from .config_read import ConfigFile, PlacedValue, read_config

__all__ = ["PRESETS", "Change", "changes_of", "write_preset"]

PRESETS = ("conservative", "very-conservative")
_MARK = "made by stayfinite check --preset"


@dataclass(frozen=True)
class Safer:
    """How one quantity is made safer: for `conservative` and for `very-conservative`."""

    mild: Callable[[float], float]
    strong: Callable[[float], float]
    reason: str


@dataclass(frozen=True)
class Change:
    """One value that the preset changes."""

    entry: PlacedValue
    value: Any
    reason: str

    @property
    def is_applied(self) -> bool:
        """False where the value's place in the text is not known: change it by hand."""
        return self.entry.start >= 0

    @property
    def note(self) -> str:
        return f"was {_shown(self.entry.value)}: {self.reason}"


def _at_most(limit: float) -> Callable[[float], float]:
    return lambda value: min(value, limit)


def _at_least(limit: float) -> Callable[[float], float]:
    return lambda value: max(value, limit)


SAFER = {
    "lr": Safer(
        lambda v: v / 2, lambda v: v / 10,
        "a smaller step is the first thing that helps against divergence",
    ),
    "clip": Safer(
        _at_most(1.0), _at_most(0.5),
        "one large gradient moves the weights less (Pascanu et al. 2013)",
    ),
    "warmup_steps": Safer(
        lambda v: max(2 * v, 1000), lambda v: max(4 * v, 2000),
        "Adam's second moment needs some hundred steps to settle",
    ),
    "warmup_ratio": Safer(_at_least(0.05), _at_least(0.1), "the same, as a share of the run"),
    "beta2": Safer(
        _at_most(0.98), _at_most(0.95),
        "a second moment that follows faster is not caught out by a sudden large gradient "
        "(Wortsman et al. 2023)",
    ),
    "adam_eps": Safer(
        _at_least(1e-7), _at_least(1e-6),
        "parameters whose gradients are nearly zero move less",
    ),
    "temperature": Safer(
        _at_least(0.05), _at_least(0.1), "logits are divided by it: smaller ones saturate",
    ),
    "focal_gamma": Safer(_at_most(1.0), _at_most(0.0), "a plainer loss: 0 is cross entropy"),
    "label_smoothing": Safer(_at_most(0.1), _at_most(0.0), "no mass on classes that are masked"),
    "mixup_alpha": Safer(_at_most(0.2), _at_most(0.0), "less mixing while the fault is looked for"),
    "growth_interval": Safer(
        _at_least(2000), _at_least(5000), "the loss scale grows less often, so it overflows less",
    ),
    "init_scale": Safer(_at_most(65536.0), _at_most(1024.0), "fewer skipped steps at the start"),
    "norm_eps": Safer(_at_least(1e-6), _at_least(1e-5), "bounds the gain of a constant row"),
    "sinkhorn_eps": Safer(_at_least(0.05), _at_least(0.1), "exp(-cost/eps) stays above zero"),
}  # fmt: skip


def changes_of(config: ConfigFile, preset: str) -> list[Change]:
    """What the preset would change in this config, in the file's order."""
    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; presets: {', '.join(PRESETS)}")
    is_strong = preset == "very-conservative"
    found = []
    for entry in config.entries:
        quantity = quantity_of(entry.path)
        if quantity == "use_amp" and is_strong and entry.value is True:
            reason = "full precision first; switch it back on when the run is stable"
            found.append(Change(entry, False, reason))
        number = number_of(entry.value)
        safer = SAFER.get(quantity or "")
        if safer is None or number is None:
            continue
        value = _tidy((safer.strong if is_strong else safer.mild)(number), entry.value)
        if not math.isclose(value, number):
            found.append(Change(entry, value, safer.reason))
    return found


def _tidy(value: float, old: Any) -> float | int:
    """Without the digits of binary fractions; whole where the old one was whole."""
    value = float(f"{value:.6g}")
    return int(value) if isinstance(old, int) and value == int(value) else value


def write_preset(path: Path, preset: str) -> tuple[Path, list[Change]]:
    """Write the changed config beside the old one; where, and what was changed."""
    config = read_config(path)
    changed = changes_of(config, preset)
    if not changed:
        return path, []
    target = path.with_name(f"{path.stem}.{preset}{path.suffix}")
    if target.exists() and not _is_ours(target):
        raise UsageError(f"{target} is there already and was not made by a preset; move it away")
    text = _with_values(config, [c for c in changed if c.is_applied])
    if config.kind == "json":
        reasons = [f"{c.entry.key} = {_shown(c.value)}  ({c.note})" for c in changed]
        head = f"{target.name}, {_MARK} {preset} from {path.name}:"
        _reasons_path(target).write_text("\n".join([head, *reasons, ""]), encoding="utf-8")
    else:
        text = f"# {_MARK} {preset} from {path.name}\n{text}"
    target.write_text(text, encoding="utf-8")
    return target, changed


def _is_ours(target: Path) -> bool:
    return _MARK in target.read_text(encoding="utf-8") or _reasons_path(target).exists()


def _reasons_path(target: Path) -> Path:
    """JSON has no comments, so the reasons go into a file of their own."""
    return target.with_suffix(".reasons.txt")


def _with_values(config: ConfigFile, changed: list[Change]) -> str:
    """The text with new values in place of the old ones, each line with its reasons."""
    lines = config.text.splitlines(keepends=True)
    by_line: dict[int, list[Change]] = {}
    for change in changed:
        by_line.setdefault((config.line_of(change.entry) or 1) - 1, []).append(change)
    for number, here in by_line.items():
        start = sum(map(len, config.text.splitlines(keepends=True)[:number]))
        line = lines[number]
        for change in sorted(here, key=lambda c: -c.entry.start):
            value = _shown(change.value, config.kind)
            line = line[: change.entry.start - start] + value + line[change.entry.end - start :]
        if config.kind != "json":
            code = line.rstrip("\r\n")
            notes = [f"{c.entry.path[-1]} {c.note}" if len(here) > 1 else c.note for c in here]
            line = f"{code.rstrip()}  # {' | '.join(notes)}{line[len(code) :]}"
        lines[number] = line
    return "".join(lines)


def _shown(value: Any, kind: str = "yaml") -> str:
    if isinstance(value, bool):
        return str(value) if kind == "py" else str(value).lower()
    if isinstance(value, float):
        text = f"{value:g}"
        # YAML takes `1e-05` for text, and a float should stay one.
        return text if "." in text else text.replace("e", ".0e") if "e" in text else f"{text}.0"
    return str(value)
