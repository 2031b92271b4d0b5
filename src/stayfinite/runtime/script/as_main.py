"""Runs a script or module in this process as Python itself would."""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
import types
from pathlib import Path

__all__ = ["run_module_as_main", "run_path_as_main"]


def run_path_as_main(path: str, args: list[str]) -> None:
    """As `python path args…`."""
    source = Path(path).read_bytes()
    full = os.path.abspath(path)
    sys.argv = [path, *args]
    sys.path[0] = os.path.dirname(os.path.realpath(full))  # a link's modules are beside its target
    main = types.ModuleType("__main__")
    main.__file__ = full
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={}, __cached__=None)
    sys.modules["__main__"] = main
    # With the script's own flags, not with those of this file.
    exec(compile(source, full, "exec", dont_inherit=True), main.__dict__)


def run_module_as_main(name: str, args: list[str]) -> None:
    """As `python -m name args…`."""
    sys.argv = [name, *args]
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)
