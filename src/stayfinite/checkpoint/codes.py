"""The codes of what a scan can find, with how bad each one is. docs/SCAN.md explains them."""

from __future__ import annotations

from ..codes import register

__all__ = ["SEVERITY", "VERDICTS"]

VERDICTS = ("healthy", "suspicious", "corrupt", "unreadable", "hostile")
"""From best to worst. A file has the verdict of the worst thing found in it."""

_CODES = {
    "nonfinite_tensor": ("corrupt", "a tensor in the file contains NaN or Inf"),
    "nonfinite_setting": (
        "corrupt",
        "a number that training resumes with (learning rate, loss scale, eps) is NaN or Inf",
    ),
    "nonfinite_metric": ("suspicious", "a saved metric or other plain number is NaN or Inf"),
    "absurd_magnitude": ("suspicious", "finite, but far larger than trained values are"),
    "near_limit": (
        "suspicious",
        "the largest value is less than one doubling from its dtype's limit",
    ),
    "all_zero": ("suspicious", "a weight matrix is zero everywhere"),
    "constant": ("suspicious", "a weight matrix holds one single value"),
    "dead_variance": ("suspicious", "a BatchNorm running variance is zero or negative"),
    "negative_second_moment": (
        "suspicious",
        "an optimizer's mean of squared gradients is negative: its square root is NaN",
    ),
    "subnormal_flood": ("suspicious", "most values of a weight are subnormal: it has underflowed"),
    "scaler_collapsed": ("suspicious", "the saved loss scale is below 1"),
    "lr_mismatch": ("suspicious", "the learning rate in the file is not the one in the config"),
    "unknown_call": (
        "suspicious",
        "loading the file calls a function that is not known; it was not called here",
    ),
    "checksum_mismatch": ("suspicious", "the bytes of an archive entry do not match its checksum"),
    "missing_tensor": ("corrupt", "an index names a tensor that its file does not hold"),
    "hostile_pickle": ("hostile", "loading the file the usual way could run code of its own"),
    "zip_bomb": ("hostile", "an archive would inflate beyond any honest size, or reuses its bytes"),
    "unsafe_name": ("hostile", "an archive entry's name points outside the archive"),
    "truncated": ("unreadable", "the file ends before what it announces"),
    "unreadable": ("unreadable", "not a known format, or it contradicts itself"),
    "limit_exceeded": (
        "unreadable",
        "reading on would cost more memory or time than a scan may take",
    ),
    "missing_file": ("unreadable", "a file that the checkpoint consists of is not there"),
    "not_scanned": ("suspicious", "a tensor whose values cannot be looked at; the others were"),
    "internal_error": ("unreadable", "a fault in stayfinite itself; please report it"),
}

SEVERITY: dict[str, str] = {name: severity for name, (severity, _) in _CODES.items()}
"""The verdict that a finding of this code leads to."""

for _name, (_severity, _definition) in _CODES.items():
    register(_name, "scan", _definition)
