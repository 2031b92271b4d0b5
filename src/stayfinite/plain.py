"""Converts records to JSON values and back.

JSON has no NaN and no Infinity. They are written as the strings "nan", "inf" and "-inf", so that every
JSON parser can read an incident.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
import weakref
from typing import Any, TypeVar

from .errors import UsageError

__all__ = ["from_plain", "to_plain"]


def to_plain(value: Any) -> Any:
    """Convert a record to dicts, lists and scalars for JSON."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    names = _FIELDS.get(kind)
    if names is None and dataclasses.is_dataclass(kind):
        names = _FIELDS[kind] = tuple(f.name for f in dataclasses.fields(kind))
    if names is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_R = TypeVar("_R")
_SCALARS = (str, int, bool, type(None))
_FIELDS: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""The fields of each class of records, which are read for every record of an incident."""
_HINTS: dict[type, dict[str, Any]] = {}
_NAMES = {int: "a whole number", str: "text", bool: "true or false"}


def from_plain(cls: type[_R], data: dict[str, Any]) -> _R:
    """Convert the result of `to_plain` back to a record; unknown keys are rejected."""
    if not isinstance(data, dict):
        raise UsageError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    unknown = sorted(set(data) - {f.name for f in fields})
    if unknown:
        raise UsageError(f"{cls.__name__}: unknown keys {', '.join(unknown)}")
    missing = [f.name for f in fields if f.name not in data and _is_required(f)]
    if missing:
        raise UsageError(f"{cls.__name__}: missing keys {', '.join(missing)}")
    return cls(**{k: _decode(hints[k], v, f"{cls.__name__}: `{k}`") for k, v in data.items()})


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if value is None:
        if hint is typing.Any or type(None) in typing.get_args(hint):
            return None
        raise UsageError(f"{where} must not be null")
    if origin in (typing.Union, types.UnionType):
        (hint,) = [a for a in typing.get_args(hint) if a is not type(None)]
        return _decode(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where} must be a list, got {value!r}")
        item = typing.get_args(hint)[0]
        return tuple(_decode(item, v, where) for v in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where} must be an object, got {value!r}")
        item = typing.get_args(hint)[1]
        return {k: _decode(item, v, where) for k, v in value.items()}
    if hint is float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{where} must be a number, got {value!r}") from None
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    if hint in _NAMES and not isinstance(value, hint):
        raise UsageError(f"{where} must be {_NAMES[hint]}, got {value!r}")
    return value
