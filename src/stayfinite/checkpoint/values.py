"""The values that a pickle is decoded into: plain containers, and placeholders for anything that could run.

A class or function that a file names is never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .files import Blob

__all__ = ["ArrayRef", "GlobalRef", "ObjectKey", "Opaque", "StorageRef", "TensorRef", "is_key"]


class GlobalRef:
    """The name of a class or function in the file."""

    __slots__ = ("module", "name", "path")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.path = f"{module}.{name}"


class StorageRef:
    """A range of bytes that tensors share, identified by the file's key."""

    __slots__ = ("blob", "dtype", "key", "num_elements", "view_offset")

    def __init__(
        self, key: str, dtype: str | None, num_elements: int, view_offset: int = 0
    ) -> None:
        self.key = key
        self.dtype = dtype
        """None for an untyped storage: its elements are bytes."""
        self.num_elements = num_elements
        self.view_offset = view_offset
        """Elements into the root storage (legacy files keep views of storages)."""
        self.blob: Blob | None = None
        """The bytes, once the reader has found them."""


class TensorRef:
    """A tensor's geometry over a storage; `storage` is None for a meta tensor."""

    __slots__ = ("dtype", "extras", "offset", "size", "storage", "stride")

    def __init__(
        self,
        storage: StorageRef | None,
        dtype: str,
        offset: int,
        size: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.offset = offset
        self.size = size
        self.stride = stride
        self.extras: dict[str, Any] | None = None
        """Quantizer parameters and attributes that hang on the tensor; few tensors have any."""

    def is_same_view(self, other: TensorRef) -> bool:
        """Whether both are the same elements of one storage."""
        return (
            self.offset == other.offset
            and self.dtype == other.dtype
            and self.size == other.size
            and self.stride == other.stride
            and self._view_offset == other._view_offset
        )

    @property
    def _view_offset(self) -> int:
        return self.storage.view_offset if self.storage is not None else 0

    def add(self, label: str, value: Any) -> None:
        """Attach an object to the tensor that is scanned with it."""
        if self.extras is None:
            self.extras = {}
        self.extras[label] = value


class ArrayRef:
    """A numpy array: its type, shape and raw bytes as they lie in the file."""

    __slots__ = ("data", "descr", "fortran_order", "shape")

    def __init__(self) -> None:
        self.descr = ""
        self.shape: tuple[int, ...] = ()
        self.fortran_order = False
        self.data: Any = b""


class Opaque:
    """An object of an unknown class: its name and contents."""

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: str, args: Any = ()) -> None:
        self.name = name
        self.args = args
        self.state: Any = None
        self.items: list[tuple[Any, Any]] = []


class ObjectKey(str):
    """A placeholder for an object that is a dict key."""

    value: Any

    def __new__(cls, number: int, value: Any) -> ObjectKey:
        key = super().__new__(cls, f"<{getattr(value, 'name', type(value).__name__)} {number}>")
        key.value = value
        return key


_SCALARS = (str, int, float, bool, type(None), bytes)


def is_key(value: Any) -> bool:
    """Whether `value` may be a dict key here.

    Tuples only when they are flat: hashing a tuple nested 100,000 deep overflows the C stack.
    """
    if isinstance(value, _SCALARS):
        return True
    return type(value) is tuple and all(isinstance(v, _SCALARS) for v in value)
