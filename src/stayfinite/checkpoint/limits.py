"""Upper bounds for everything that a file's author controls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ..errors import UnreadableError

__all__ = ["DEFAULT_LIMITS", "FileFault", "LimitError", "Limits", "Meter"]

_CHECK_EVERY = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for one file. The defaults are above the largest real checkpoints.

    >>> Limits().max_name
    4096
    """

    max_opcodes: int = 30_000_000
    """Pickle instructions: 250,000 tensors with two Adam moments each take about 25 million."""
    max_objects: int = 6_000_000
    """Containers and placeholders that one pickle may build, and values that are looked at."""
    max_text: int = 256 << 20
    """Bytes of text that one pickle may decode."""
    max_name: int = 4096
    """Characters in a tensor's or an archive entry's name."""
    max_depth: int = 200
    """Nested containers on the way to a tensor, and nested folders on the way to a file."""
    max_entries: int = 1_000_000
    """Entries in a zip archive, tensors in a file, files in a scanned folder."""
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
    max_findings: int = 1000
    """Findings that are listed for one file; the rest is counted."""
    max_seconds: float = 10.0
    """Processor time for each part of one file but its tensors' bytes: index, pickles, names."""
    max_memory: int = 300 << 20
    """Bytes of memory for one file, besides what is mapped."""
    meter: Meter | None = field(default=None, repr=False, compare=False)
    """What has been used of the two above, once `begin` was called."""

    is_inner: bool = field(default=False, repr=False, compare=False)
    """For a file inside a file, which has no time of its own."""

    def inner(self) -> Limits:
        """The same counters for a file inside this one."""
        return replace(self, is_inner=True)

    def begin(self) -> Limits:
        """The same limits with new counters, for another file."""
        return replace(self, meter=Meter(self))

    def part(self, name: str) -> None:
        """Call this at the start of another part of a file."""
        if self.meter is not None and not self.is_inner:
            self.meter.part(name)

    def tick(self) -> None:
        """Call this for each item; raises when the time is up."""
        if self.meter is not None:
            self.meter.tick()

    def spend(self, num_bytes: int) -> None:
        """Call this for memory that a file's author controls."""
        if self.meter is not None:
            self.meter.spend(num_bytes)


class Meter:
    """The time and the memory used for one file.

    The time is CPU time of the calling thread, so that a busy machine does not make a file unreadable.
    """

    __slots__ = ("_count", "_deadline", "_limits", "_part", "num_bytes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._count = 0
        self.num_bytes = 0
        self.part("its index")

    def part(self, name: str) -> None:
        """Begin another part of the file, with the whole time."""
        self._part = name
        self._deadline = time.thread_time() + self._limits.max_seconds

    def tick(self) -> None:
        self._count += 1
        if self._count >= _CHECK_EVERY:
            self.check()

    def check(self) -> None:
        """Whether the time is up; fast enough for every thousandth item."""
        self._count = 0
        if time.thread_time() > self._deadline:
            raise LimitError(f"stopped after {self._limits.max_seconds:g} s in {self._part}")

    def spend(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if self.num_bytes > self._limits.max_memory:
            limit = self._limits.max_memory >> 20
            raise LimitError(f"stopped at {limit:,} MB of memory besides the mapped data")


DEFAULT_LIMITS = Limits()


class FileFault(UnreadableError):
    """Raised if a file cannot be read further; has the code of the finding."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.format = "unknown"
        """The format that the file announces, once a reader has taken it."""


class LimitError(FileFault):
    """Raised if the file needs more than the limits allow."""

    def __init__(self, message: str) -> None:
        super().__init__("limit_exceeded", message)
