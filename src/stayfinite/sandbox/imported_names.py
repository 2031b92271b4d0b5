"""Patches names such as `from os import remove` that a patch of `os` would miss.

Only the user's own modules are searched. Installed packages are not: there are thousands, and replays run the user's step.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from ..patches import unpatched

__all__ = ["imported_names", "stamp"]

_INSTALLED = tuple(
    dict.fromkeys(
        path
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    )
)


def imported_names(functions: Mapping[int, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Module, name and associated object for each global that is one of `functions` (by id)."""
    for name in _users_modules(stamp()):
        module = sys.modules.get(name)
        for key, value in list(vars(module).items()) if module is not None else ():
            found = functions.get(id(value)) or functions.get(id(unpatched(value)))
            if found is not None:
                yield module, key, found


def stamp() -> tuple[int, str]:
    """A stamp that changes when a module is imported."""
    return len(sys.modules), next(reversed(sys.modules))


@functools.lru_cache(maxsize=1)
def _users_modules(at: tuple[int, str]) -> list[str]:
    return [n for n, m in list(sys.modules.items()) if _belongs_to_user(n, m)]


def _belongs_to_user(name: str, module: Any) -> bool:
    if type(module) is not ModuleType:
        return False  # a lazy module, which may import when accessed
    file = vars(module).get("__file__")
    if name == "__main__":
        return True
    if not isinstance(file, str) or name.partition(".")[0] == "stayfinite":
        return False
    return not file.startswith(_INSTALLED) and "site-packages" not in file
