"""Runs the statements of a loop's body again, on copies, without side effects."""

from .body import NOT_GIVEN, Body
from .scene import Scene, scenes_of_frame, scenes_of_traceback

__all__ = ["NOT_GIVEN", "Body", "Scene", "scenes_of_frame", "scenes_of_traceback"]
