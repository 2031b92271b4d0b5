"""Parses `KEY=VALUE`, with relative values such as `0.1x`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

__all__ = [
    "Try",
    "as_number",
    "as_switch",
    "normal",
    "parse_try",
    "parse_value",
    "resolved",
    "shown",
]

_FACTOR = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)x")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_SPACES = {"env": "env", "stayfinite": "knob"}


@dataclass(frozen=True)
class Try:
    """One `--try`, as the user wrote it."""

    text: str
    key: str
    value: str
    space: str = ""
    """env | knob, where the user said so; else "" (look for it)."""

    @property
    def factor(self) -> float | None:
        """The factor of a relative value.

        >>> parse_try("lr=0.1x").factor
        0.1
        """
        found = _FACTOR.fullmatch(self.value)
        return float(found.group(1)) if found else None


def parse_try(text: str) -> Try:
    """Parse one change.

    >>> parse_try("env:OMP_NUM_THREADS=1")
    Try(text='env:OMP_NUM_THREADS=1', key='OMP_NUM_THREADS', value='1', space='env')
    >>> parse_try("skip_bad_samples").value
    'true'
    >>> parse_try("=3")
    Traceback (most recent call last):
    stayfinite.errors.UsageError: --try takes KEY=VALUE, got '=3'
      try: --try lr=0.1x, --try use_amp=false, --try env:NAME=VALUE, --try stayfinite:autocast=off
    """
    name, sign, value = text.partition("=")
    space, colon, rest = name.partition(":")
    key = name.strip()
    if colon and space in _SPACES:
        key = rest.strip()
    elif colon:
        raise UsageError(
            f"--try {text}: unknown kind of change {space!r}; choose one of: env, stayfinite\n"
            "  try: --try KEY=VALUE looks among the script's flags and config keys"
        )
    key = key.removeprefix("--")
    if not key or any(c.isspace() for c in key):
        raise UsageError(
            f"--try takes KEY=VALUE, got {text!r}\n  try: --try lr=0.1x, --try use_amp=false, "
            "--try env:NAME=VALUE, --try stayfinite:autocast=off"
        )
    return Try(
        text, key, value.strip() if sign else "true", _SPACES.get(space, "") if colon else ""
    )


def normal(name: str) -> str:
    """A name in the form in which names are compared: `--Use-AMP` is `use_amp`."""
    return name.lstrip("-").replace("-", "_").lower()


def parse_value(text: str) -> Any:
    """The value that a config file would have for this text.

    >>> [parse_value(t) for t in ("false", "3", "1e-4", "[1, 2]", "cosine", "null")]
    [False, 3, 0.0001, [1, 2], 'cosine', None]
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[:1] in ("[", "{", '"'):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def as_switch(text: str) -> bool | None:
    """On or off, as people type it; None for anything else.

    >>> as_switch("off"), as_switch("True"), as_switch("2")
    (False, True, None)
    """
    return {"true": True, "on": True, "yes": True, "1": True}.get(
        text.lower(), False if text.lower() in ("false", "off", "no", "0") else None
    )


def as_number(value: Any) -> float | None:
    """A number, also where a config reader left it as text (`1e-4` in YAML).

    >>> as_number("1e-4"), as_number(True), as_number("fast")
    (0.0001, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def resolved(wanted: Try, current: Any) -> Any:
    """The value to set if `current` is the present one; an integer stays one if possible.

    >>> resolved(parse_try("lr=0.1x"), "1e-3"), resolved(parse_try("warmup=2x"), 100)
    (0.0001, 200)
    """
    factor = wanted.factor
    if factor is None:
        return parse_value(wanted.value)
    number = as_number(current)
    if number is None:
        raise UsageError(
            f"--try {wanted.text}: {wanted.key} is {current!r}, which cannot be multiplied\n"
            f"  try: give the value itself, --try {wanted.key}=VALUE"
        )
    product = float(f"{number * factor:.12g}")
    if isinstance(current, int) and not isinstance(current, bool) and product.is_integer():
        return int(product)
    return product


def shown(value: Any) -> str:
    """A value as a user would type it.

    >>> [shown(v) for v in (True, None, 1e-05, "adam")]
    ['true', 'null', '1e-05', 'adam']
    """
    if isinstance(value, bool) or value is None or isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return f"{value:g}" if isinstance(value, float) else str(value)
