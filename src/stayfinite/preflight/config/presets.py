"""`--preset`: writes a safer config next to the old one, with reasons."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .names import number_of, quantity_of
from .preset_rules import SAFER, Change, related
from .read import ConfigFile, read_config

__all__ = ["PRESETS", "changes_of", "note_of", "write_preset"]

PRESETS = ("conservative", "very-conservative")
_MARK = "made by stayfinite check --preset"


def changes_of(config: ConfigFile, preset: str) -> list[Change]:
    """What the preset would change in this config, in the file's order."""
    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; presets: {', '.join(PRESETS)}")
    is_strong = preset == "very-conservative"
    found = list(related(config, is_strong))
    for entry in config.entries:
        number = number_of(entry.value)
        safer = SAFER.get(quantity_of(entry.path) or "")
        if safer is None or number is None:
            continue
        value = _tidy((safer.strong if is_strong else safer.mild)(number), entry.value)
        if not math.isclose(value, number):
            found.append(Change(entry, value, safer.reason))
    places = {entry.path: i for i, entry in enumerate(config.entries)}
    return sorted(found, key=lambda c: places[c.entry.path])


def note_of(change: Change) -> str:
    """The old value, and the reason for the change."""
    return f"was {_shown(change.entry.value)}: {change.reason}"


def _tidy(value: float, old: Any) -> float | int:
    """Rounded to a short decimal; an integer if the old value was one."""
    value = float(f"{value:.6g}")
    return int(value) if isinstance(old, int) and value == int(value) else value


def write_preset(path: Path, preset: str) -> tuple[Path, list[Change]]:
    """Write the changed config next to the old one; returns its path and the changes."""
    config = read_config(path)
    changed = changes_of(config, preset)
    if not changed:
        return path, []
    target = path.with_name(f"{path.stem}.{preset}{path.suffix}")
    if target.exists() and not _is_ours(target):
        raise UsageError(f"{target} is there already and was not made by a preset; move it away")
    text = _with_values(config, [c for c in changed if c.is_applied])
    if config.kind == "json":
        reasons = [f"{c.entry.key} = {_shown(c.value)}  ({note_of(c)})" for c in changed]
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
            old = config.text[change.entry.start : change.entry.end]
            value = _written(change.value, old, config.kind)
            line = line[: change.entry.start - start] + value + line[change.entry.end - start :]
        if config.kind != "json":
            code = line.rstrip("\r\n")
            notes = [
                f"{c.entry.path[-1]} {note_of(c)}" if len(here) > 1 else note_of(c) for c in here
            ]
            line = f"{code.rstrip()}  # {' | '.join(notes)}{line[len(code) :]}"
        lines[number] = line
    return "".join(lines)


def _written(value: Any, old: str, kind: str) -> str:
    """The new value as the old one was written: in quotes, or as a power of two."""
    if isinstance(value, str):
        is_plain = kind == "yaml" and value != "no"  # YAML takes a bare `no` for false
        quote = old[:1] if old[:1] in ("'", '"') else "" if is_plain else '"'
        return f"{quote}{value}{quote}"
    power = re.fullmatch(r"(\s*['\"]?2\.?0?\s*\*\*\s*)\d+(['\"]?)", old)
    exponent = math.log2(value) if power and not isinstance(value, bool) and value > 0 else 0.5
    if power and exponent.is_integer():
        return f"{power[1]}{exponent:.0f}{power[2]}"
    return _shown(value, kind)


def _shown(value: Any, kind: str = "yaml") -> str:
    if isinstance(value, bool):
        return str(value) if kind == "py" else str(value).lower()
    if isinstance(value, float):
        text = f"{value:g}"
        # YAML takes `1e-05` for text, and a float should stay one.
        return text if "." in text else text.replace("e", ".0e") if "e" in text else f"{text}.0"
    return str(value)
