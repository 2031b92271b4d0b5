"""How much a file may ask of the scanner: all that its author controls has a bound."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnreadableError

__all__ = ["DEFAULT_LIMITS", "FileFault", "LimitError", "Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one file. The defaults leave room for the largest honest checkpoints.

    >>> Limits().max_name
    4096
    """

    max_opcodes: int = 30_000_000
    """Pickle instructions: 250,000 tensors with two Adam moments each take about 25 million."""
    max_objects: int = 6_000_000
    """Containers and placeholders that one pickle may build."""
    max_text: int = 256 << 20
    """Bytes of text that one pickle may decode."""
    max_name: int = 4096
    """Characters in a tensor's or an archive entry's name."""
    max_depth: int = 200
    """Nested containers on the way to a tensor."""
    max_entries: int = 1_000_000
    """Entries in a zip archive, and tensors in a file."""
    max_json: int = 100 << 20
    """Bytes of a safetensors header or an index (the format's own limit)."""
    max_json_nodes: int = 4_000_000
    """Values in a JSON header."""
    max_inflate_ratio: int = 200
    """Inflated bytes for each compressed byte, above `min_bomb_bytes`."""
    min_bomb_bytes: int = 256 << 20
    """A compressed entry up to this size is inflated whatever its ratio."""
    max_rereads: int = 8
    """How often overlapping views may make the scan read one storage again."""
    max_seconds: float = 120.0
    """Time for one file's pickles."""


DEFAULT_LIMITS = Limits()


class FileFault(UnreadableError):
    """A file cannot be read on; carries the code of the finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.format = "unknown"
        """The format that the file announces, once a reader has taken it."""


class LimitError(FileFault):
    """The file asks for more than the limits allow."""

    def __init__(self, message: str) -> None:
        super().__init__("limit_exceeded", message)
