"""Pure detectors: numbers in, a verdict out. No tensor, no model, no side effect."""

from .scale import ScaleWatch
from .spike import Spike, SpikeWatch

__all__ = ["ScaleWatch", "Spike", "SpikeWatch"]
