"""Pure detectors: numbers in, a verdict out. No tensor, no model, no side effect."""

from .climb import Climb, climb
from .scale import ScaleWatch
from .spike import Spike, SpikeWatch

__all__ = ["Climb", "ScaleWatch", "Spike", "SpikeWatch", "climb"]
