"""Pure detectors: numbers in, a verdict out. No tensor, no model, no side effect."""

from .scale import ScaleWatch

__all__ = ["ScaleWatch"]
