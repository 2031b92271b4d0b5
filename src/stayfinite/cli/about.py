"""`stayfinite --version --verbose`: the versions that a bug report needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from .. import __version__

__all__ = ["about"]

_PACKAGES = (
    "numpy", "safetensors", "rich", "typer", "lightning", "transformers", "accelerate",
    "pytest", "ipython",
)  # fmt: skip


def about() -> str:
    """The version, and what it runs on; no name of the machine or of its user."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    rows = {
        "stayfinite": __version__,
        "installed": "from a source tree" if _is_source_tree() else "as a package",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": str(torch.__version__),
        "accelerator": "none" if accelerator is None else accelerator.type,
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "distributed": "yes" if torch.distributed.is_available() else "no",
    }
    for name in _PACKAGES:
        rows[name] = _version(name)
    if sys.flags.optimize:
        rows["python -O"] = "yes"
    wide = max(map(len, rows))
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in rows.items())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _is_source_tree() -> bool:
    return (Path(__file__).parents[3] / "pyproject.toml").exists()
