"""Sets up a process of the ladder before the script runs, and stores its result.

Every process writes one JSON file with its result; one that does not has crashed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

__all__ = ["RESULT", "finish", "prepare", "write_answer"]

RESULT = "result.json"
_SEED = 0
_prepared: dict[str, Any] = {}


def finish(folder: str, answer: dict[str, Any]) -> None:
    """Write the result and end at once, without running more of the script."""
    write_answer(folder, RESULT, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def write_answer(folder: str, name: str, answer: dict[str, Any]) -> None:
    """Write the file atomically, because the parent waits for it."""
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8") as f:
        json.dump(answer, f)
    os.replace(draft, os.path.join(folder, name))


def prepare(spec: dict[str, Any]) -> dict[str, Any]:
    """Redirect files, set the random seed, apply knobs; a forked process has this already."""
    if _prepared:
        return _prepared
    import torch

    from ..sandbox import redirect_for_good
    from .apply import Seen, turn_knobs

    files = redirect_for_good(spec["folder"])
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_SEED)
    turn_knobs(spec.get("knobs", {}))
    _prepared.update(files=files, seen=Seen())
    return _prepared
