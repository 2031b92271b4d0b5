"""Our own knobs: changes that work without the script's help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from ..errors import UsageError
from .values import Try, as_number, normal, parse_value

__all__ = ["KNOBS", "knob_value"]

KNOBS: Mapping[str, str] = {
    "autocast": "off: no autocast, and no GradScaler with it",
    "precision": "fp32: everything in float32, also what the script casts by hand",
    "lr": "a factor on every learning rate (0.1x)",
    "clip": "the gradients' total norm is held to this number before each step",
    "init_scale": "the GradScaler's first scale",
    "growth_interval": "after how many good steps the GradScaler doubles its scale",
    "scaler": "off: the GradScaler scales nothing",
    "skip_bad_samples": "samples that hold a NaN or Inf are taken out of their batch",
}
_OFF = ("autocast", "scaler")
_ALIASES = {"amp": "autocast", "grad_clip": "clip", "clip_norm": "clip"}


def knob_value(wanted: Try) -> tuple[str, str] | None:
    """(knob, its value as text), or None if it is not one of our knobs.

    >>> from .values import parse_try
    >>> knob_value(parse_try("lr=0.1x")), knob_value(parse_try("amp=false"))
    (('lr', '0.1x'), ('autocast', 'off'))
    >>> knob_value(parse_try("stayfinite:autocst=off"))
    Traceback (most recent call last):
    stayfinite.errors.UsageError: --try stayfinite:autocst=off: no knob 'autocst'; choose one of: autocast, precision, lr, clip, init_scale, growth_interval, scaler, skip_bad_samples
      try: autocast
    """
    name = normal(wanted.key)
    name = _ALIASES.get(name, name)
    if name not in KNOBS:
        if wanted.space != "knob":
            return None
        near = difflib.get_close_matches(name, KNOBS, 1)
        raise UsageError(
            f"--try {wanted.text}: no knob {wanted.key!r}; choose one of: {', '.join(KNOBS)}"
            + (f"\n  try: {near[0]}" if near else "")
        )
    value = _value(name, wanted)
    if value is None and wanted.space != "knob":
        return None
    if value is None:
        raise UsageError(f"--try {wanted.text}: {name} takes {_takes(name)}, got {wanted.value!r}")
    return name, value


def _value(name: str, wanted: Try) -> str | None:
    if name == "lr":
        return wanted.value if wanted.factor is not None and wanted.factor > 0 else None
    if name == "precision":
        return "fp32" if normal(wanted.value) in ("fp32", "float32", "32") else None
    if name in _OFF:
        return "off" if normal(wanted.value) in ("off", "false", "0", "no") else None
    if name == "skip_bad_samples":
        return "true" if normal(wanted.value) in ("true", "on", "1", "yes") else None
    number = as_number(parse_value(wanted.value))
    if number is None or number <= 0:
        return None
    is_whole = name != "growth_interval" or number.is_integer()
    return f"{number:g}" if is_whole else None


def _takes(name: str) -> str:
    if name == "lr":
        return "a factor such as 0.1x"
    if name in _OFF:
        return "off"
    if name == "precision":
        return "fp32"
    return "true" if name == "skip_bad_samples" else "a number above 0"
