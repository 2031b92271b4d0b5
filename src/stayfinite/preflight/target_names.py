"""Suggests what the user may have meant by a name that leads nowhere."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from pathlib import Path

from ..errors import UsageError

__all__ = ["nearest_script", "require_module"]


def nearest_script(name: str) -> str:
    """A line that proposes the script of a similar name; empty where there is none."""
    path = Path(name)
    scripts = {p.stem: str(p) for p in sorted(path.parent.glob("*.py"))}
    near = difflib.get_close_matches(path.stem, scripts, n=1)
    return f"\ntry: {scripts[near[0]]}" if near else ""


def require_module(name: str) -> None:
    """Nothing is imported: only whether there is something to begin with."""
    if name.endswith(".py") and Path(name).is_file():
        raise UsageError(
            f"-m takes a module's name, got the file {name!r}\n"
            f"try: {name} without -m, or -m {name[:-3].replace(os.sep, '.')}"
        )
    top = name.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        is_there = importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        is_there = False
    finally:
        sys.path.remove(os.getcwd())
    if not is_there:
        raise UsageError(f"there is no module {top!r} in {os.getcwd()} or on the Python path")
