"""Saves the random state at the start of a step; copies only generators that have advanced."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices import current, is_accelerator_started, random_states, set_random_states

__all__ = ["RngMemory", "RngState", "is_kind_of_generator"]

_joined = b"".join
"""Reads several memory areas in one call."""


class RngState:
    """The states of all generators; `numpy` is None if it is not imported."""

    __slots__ = ("accelerator", "numpy", "own", "python", "torch")

    def __init__(
        self,
        torch_state: Tensor,
        accelerator: list[Tensor] | None,
        python: Any,
        numpy: Any,
        own: Any = (),
    ) -> None:
        self.torch = torch_state
        self.accelerator = accelerator
        self.python = python
        self.numpy = numpy
        self.own: Sequence[tuple[Any, Any]] = own
        """Generators that the training has made, with their states."""

    def restore(self) -> None:
        """Restore the generators."""
        torch.set_rng_state(self.torch)
        if self.accelerator is not None:
            set_random_states(self.accelerator)
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        for generator, state in self.own:
            _set(generator, state)

    def is_same(self, other: RngState) -> bool:
        """Whether the next random numbers would be the same."""
        mine, theirs = ([s.torch, *(s.accelerator or [])] for s in (self, other))
        return (
            len(mine) == len(theirs)
            and all(map(torch.equal, mine, theirs))
            and self.python == other.python
            and _plain(self.numpy) == _plain(other.numpy)
            and all(map(_is_same, self.own, other.own))
        )

    @classmethod
    def now(cls) -> RngState:
        """The current states of the global generators (takes 9 µs for Python's, 34 µs for NumPy's)."""
        numpy = sys.modules.get("numpy")
        return cls(
            torch.get_rng_state(),
            random_states(),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )

    def current(self) -> RngState:
        """The current states of the same generators."""
        found = RngState.now()
        found.own = [(g, _get(g)) for g, _ in self.own]
        return found


def _plain(numpy_state: Any) -> Any:
    """NumPy's state with its array as bytes, to compare."""
    if numpy_state is None:
        return None
    return tuple(v.tobytes() if hasattr(v, "tobytes") else v for v in numpy_state)


def is_kind_of_generator(kind: type) -> bool:
    """Whether objects of this type are random generators with a state.

    >>> [is_kind_of_generator(k) for k in (torch.Generator, random.Random, random.SystemRandom)]
    [True, True, False]
    """
    if issubclass(kind, (torch.Generator, random.Random)):
        return not issubclass(kind, random.SystemRandom)
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and issubclass(kind, (numpy.Generator, numpy.RandomState))


def _get(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _is_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    mine, theirs = one[1], other[1]
    if isinstance(mine, Tensor):
        return torch.equal(mine, theirs)
    return repr(mine) == repr(theirs)


class RngMemory:
    """Captures the random state of each step.

    Copying takes 2 to 7 µs for torch (5 KB), 9 for Python and 34 for NumPy. So a generator is copied only if its position,
    which is read directly from its memory, has changed. A generator whose memory layout is unknown is copied every time.
    """

    def __init__(self) -> None:
        self._torch = _Kept(torch.default_generator.get_state, _torch_areas())
        self._python = _Kept(random.getstate, _python_areas(random._inst), random._inst)
        self._numpy: _Kept | None = None
        self._numpy_home: Any = None
        self._numpy_generator: Any = None
        """Keeps the generator alive, because its memory is read."""
        self._own: list[tuple[Any, _Kept]] = []
        self._near: set[int] = set()
        """Ids of those in `_own` that were found in the loop's variables."""
        self._last: RngState | None = None
        self._areas: list[Any] | None = None
        """The memory areas of all generators; None if the position of one cannot be read."""
        self._at = b""
        self._pythons: list[tuple[Any, float | None]] = []
        """Python's generators, each with the second of a pair of normal numbers, which it stores."""

    def watch(self, generators: Iterable[Any]) -> None:
        """Capture these generators as well from now on."""
        known = {id(g) for g in (torch.default_generator, random._inst, _numpy_global())}
        known |= {id(g) for g, _ in self._own}
        self._own += [(g, _kept(g)) for g in generators if id(g) not in known]
        self._areas = None

    def watch_near(self, generators: list[Any]) -> None:
        """The same for generators in the loop's variables; those that are no longer there are dropped."""
        here, known = {id(g) for g in generators}, {id(g) for g, _ in self._own}
        gone = self._near - here
        if gone or not here <= known:
            self._own = [(g, kept) for g, kept in self._own if id(g) not in gone]
            self.watch(generators)
            self._near = (self._near & here) | (here - known)

    def forget_others(self) -> None:
        """Drop the generators of a training that is over."""
        self._own.clear()
        self._near.clear()
        self._areas = None

    def capture(self) -> RngState:
        """The current state; the same object as before if no generator has advanced."""
        if (
            self._areas is not None
            and self._numpy_home._bit_generator is self._numpy_generator
            and (current() is None or not is_accelerator_started())
        ):
            if _joined(self._areas) != self._at:
                return self._capture_each()
            for generator, pair in self._pythons:
                if generator.gauss_next != pair:
                    return self._capture_each()
            return self._last  # type: ignore[return-value]  # set whenever there are areas
        return self._capture_each()

    def _capture_each(self) -> RngState:
        home = _numpy_global()
        if home is not None and (
            self._numpy is None or home._bit_generator is not self._numpy_generator
        ):
            self._numpy_home, self._numpy_generator = home, home._bit_generator
            self._numpy = _Kept(home.get_state, _legacy_areas(home))
            self._areas = None
        shared = [k for k in (self._torch, self._python, self._numpy) if k is not None]
        known = [*shared, *(kept for _, kept in self._own)]
        for kept in known:
            kept.refresh()
        if self._areas is None and self._numpy is not None and all(k.areas for k in known):
            self._areas = [area for kept in known for area in kept.areas or ()]
        self._at = _joined(self._areas or ())
        pythons = [kept.python for kept in known if kept.python is not None]
        self._pythons = [(generator, generator.gauss_next) for generator in pythons]
        state = self._numpy.state if self._numpy is not None else None
        own = [(generator, kept.state) for generator, kept in self._own]
        self._last = RngState(self._torch.state, random_states(), self._python.state, state, own)
        return self._last


class _Kept:
    """One generator: its last copy, and the memory areas that show whether it has advanced.

    `python`: set for Python's generators, which store the second of a pair of normal numbers as an attribute.
    """

    def __init__(
        self, copy: Callable[[], Any], areas: list[Any] | None, python: Any = None
    ) -> None:
        self.copy = copy
        self.areas = areas
        self.python = python if areas else None
        self._at: list[Any] | None = None
        self.state: Any = None

    def refresh(self) -> None:
        """Copy it if it has advanced since the last call."""
        at = [area.raw for area in self.areas] if self.areas is not None else None
        if at is not None and self.python is not None:
            at.append(self.python.gauss_next)
        if at is None or at != self._at:
            self.state, self._at = self.copy(), at


def _kept(generator: Any) -> _Kept:
    """Track a generator of the training; if its position cannot be read, it is copied every time."""
    kind, areas = type(generator), None
    if kind is random.Random:
        areas = _python_areas(generator)
    elif kind is torch.Generator and generator.device.type == "cpu" and _torch_areas() is not None:
        areas = _around_twister(generator)
    elif hasattr(generator, "bit_generator"):
        areas = _pcg_areas(generator.bit_generator)
    elif hasattr(generator, "_bit_generator"):
        areas = _legacy_areas(generator)
    return _Kept(
        lambda: _get(generator), areas, generator if isinstance(generator, random.Random) else None
    )


def _numpy_global() -> Any:
    """The global generator of NumPy; None if it is not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.mtrand._rand


def _area(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _python_areas(generator: random.Random) -> list[Any] | None:
    """Position and first two words of Python's Mersenne twister; after any seeding the first is the same."""
    base = id(generator) + object.__basicsize__
    area = _area(base, 12)
    words = generator.getstate()[1]
    if struct.unpack("<i2I", area.raw) != (words[-1], *words[:2]):
        return None  # another interpreter lays it out differently
    return [area]


def _legacy_areas(home: Any) -> list[Any] | None:
    """The same for NumPy's global generator, and its stored second normal number; None for another kind."""
    try:
        generator = home._bit_generator
        base = generator.ctypes.state_address
        state = generator.state
        words, index = state["state"]["key"], state["state"]["pos"]
        pair = _pair_offset()
    except Exception:
        return None
    if state["bit_generator"] != "MT19937" or pair is None:
        return None
    first, position = _area(base, 8), _area(base + 2496, 4)
    is_there = struct.unpack("<2Ii", first.raw + position.raw) == (*map(int, words[:2]), index)
    return [first, position, _area(id(home) + pair, 16)] if is_there else None


@functools.lru_cache(maxsize=1)
def _pair_offset() -> int | None:
    """The offset of the flag and the second normal number in a `RandomState`, found by experiment."""
    kind = sys.modules["numpy"].random.RandomState
    scratch = kind(0)
    scratch.standard_normal()
    whole = _area(id(scratch), kind.__basicsize__)
    at = whole.raw.find(struct.pack("<d", scratch.get_state(legacy=False)["gauss"])) - 8
    if at < 0 or struct.unpack_from("<i", whole.raw, at) != (1,):
        return None
    scratch.standard_normal()
    return at if struct.unpack_from("<i", whole.raw, at) == (0,) else None


def _pcg_areas(generator: Any) -> list[Any] | None:
    """The state of NumPy's PCG64, and its stored half number."""
    if type(generator).__name__ not in ("PCG64", "PCG64DXSM"):
        return None
    base = generator.ctypes.state_address  # a pointer to the words, then a flag and a half number
    words = _area(ctypes.c_void_p.from_address(base).value or 0, 32)
    state = generator.state
    low, high = struct.unpack_from("<QQ", words.raw)
    if state["state"]["state"] not in (low | high << 64, high | low << 64):
        return None
    return [words, _area(base + ctypes.sizeof(ctypes.c_void_p), 8)]


@functools.lru_cache(maxsize=1)
def _torch_areas() -> list[Any] | None:
    """The same for torch's generator, and its stored second normal number.

    The positions are found by their values, and tested with a generator of our own.
    """
    scratch = torch.Generator()
    found = _around_twister(scratch)
    if found is None:
        return None
    at = [area.raw for area in found]
    for draw in (torch.rand, torch.randn, torch.randn):
        for dtype in (torch.float32, torch.float64):
            draw(1, generator=scratch, dtype=dtype)
            before, at = at, [area.raw for area in found]
            if at == before:
                return None
    return _around_twister(torch.default_generator)


def _around_twister(generator: torch.Generator) -> list[Any] | None:
    if type(generator).__basicsize__ > object.__basicsize__ + 16:
        return None
    address = ctypes.c_void_p.from_address(id(generator) + object.__basicsize__).value
    saved = generator.get_state()
    if not address or saved.numel() < 24 + 624 * 8:
        return None
    seed, left, _, position = struct.unpack_from("<QiiQ", bytes(saved[:24].tolist()))
    words = struct.unpack_from("<4Q", bytes(saved[24:56].tolist()))
    start = _area(address, 512).raw.find(struct.pack("<4I", *words))
    if start < 24:
        return None
    # Before the words: seed, words left, seeded, next; after them: the stored normal numbers.
    head, tail = _area(address + start - 24, 28), _area(address + start + 2496, 40)
    where = struct.unpack_from("<Qii", head.raw, 4), struct.unpack_from("<i", head.raw, 20)
    if (where[0][0], where[0][1], where[1][0]) != (seed, left, position):
        return None
    return [head, tail]
