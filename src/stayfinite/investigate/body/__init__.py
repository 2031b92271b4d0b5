"""Running the statements of a loop's body again, on copies, so that nobody outside can feel it."""

from .body import NOT_GIVEN, Body
from .scene import Scene, scenes_of_frame, scenes_of_traceback

__all__ = ["NOT_GIVEN", "Body", "Scene", "scenes_of_frame", "scenes_of_traceback"]
