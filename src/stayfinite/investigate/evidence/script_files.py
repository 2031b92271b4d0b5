"""The files of the script in which a training runs."""

from __future__ import annotations

import inspect
import sys

from ...locate.frames import is_user_file
from ...patches.made_at import call_stack, made_at
from ..investigation import Investigation

__all__ = ["own_files", "source_files"]


def own_files(investigation: Investigation) -> list[str]:
    """The user's files that the training is known to run in: its loop, loss function, models and optimizers, and the script."""
    place, scene = investigation.engine.step_place, investigation.vehicle.scene
    batches = investigation.window.batches
    loss_fn = batches[0].loss_fn if batches else None
    module = sys.modules.get(getattr(loss_fn, "__module__", None) or "")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    known = [
        place.code.co_filename if place.code is not None else None,
        scene.file if scene is not None else None,
        getattr(module, "__file__", None),
        *(file for file, _, _ in call_stack(sys._getframe(1))),
        investigation.engine.script,
        *(f for o in investigation.state.optimizers for f, _, _ in made_at(o)),
        *(f for root in investigation.state.roots.values() for f in source_files([type(root)])),
        main,
    ]
    return [f for f in dict.fromkeys(known) if f is not None and is_user_file(f)]


def source_files(classes: list[type]) -> list[str]:
    """The source files of these classes, except torch's own."""
    found: list[str] = []
    for cls in classes:
        if cls.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        try:
            file = inspect.getsourcefile(cls)
        except (TypeError, OSError):
            continue
        if file is not None and file not in found:
            found.append(file)
    return found
