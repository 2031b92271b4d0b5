"""Pure detectors: numbers in, a verdict out. They touch no model and have no side effects."""

from .climb import Climb, climb
from .scale import ScaleWatch
from .spike import Spike, SpikeWatch

__all__ = ["Climb", "ScaleWatch", "Spike", "SpikeWatch", "climb"]
