"""Saves the random state at the start of a step; copies only generators that move."""

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
"""What lies in several areas of memory, read in one call."""


class RngState:
    """The generators as they were; None for NumPy's where that is not imported."""

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
        """Generators that the training has made for itself, each with its state."""

    def restore(self) -> None:
        """Put the generators back."""
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
        """Whether the next numbers would be the same ones."""
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
        """The process's generators, whatever they cost (9 µs for Python's, 34 µs for NumPy's)."""
        numpy = sys.modules.get("numpy")
        return cls(
            torch.get_rng_state(),
            random_states(),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )

    def now_too(self) -> RngState:
        """The same generators as these, as they are now."""
        found = RngState.now()
        found.own = [(g, _get(g)) for g, _ in self.own]
        return found


def _plain(numpy_state: Any) -> Any:
    """NumPy's state with its array as bytes, to compare."""
    if numpy_state is None:
        return None
    return tuple(v.tobytes() if hasattr(v, "tobytes") else v for v in numpy_state)


def is_kind_of_generator(kind: type) -> bool:
    """Whether such an object is a source of random numbers that somebody has made for himself.

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
    """Captures per step. A generator is copied (torch's 5 KB and 2 to 7 µs, Python's 9, NumPy's
    34 µs) only when a look at its position says that it has moved; without such a look, every time.
    """

    def __init__(self) -> None:
        self._torch = _Kept(torch.default_generator.get_state, _torch_areas())
        self._python = _Kept(random.getstate, _python_areas(random._inst), random._inst)
        self._numpy: _Kept | None = None
        self._numpy_home: Any = None
        self._numpy_generator: Any = None
        """Held on to, so that its memory stays where we look."""
        self._own: list[tuple[Any, _Kept]] = []
        self._near: set[int] = set()
        """Those among them that were found in the loop's variables, by identity."""
        self._last: RngState | None = None
        self._areas: list[Any] | None = None
        """Of all generators, once each of them can be looked at."""
        self._at = b""
        self._pythons: list[tuple[Any, float | None]] = []
        """Python's own, each with the normal number that it keeps for later."""

    def watch(self, generators: Iterable[Any]) -> None:
        """From now on these are captured as well."""
        known = {id(g) for g in (torch.default_generator, random._inst, _numpy_global())}
        known |= {id(g) for g, _ in self._own}
        self._own += [(g, _kept(g)) for g in generators if id(g) not in known]
        self._areas = None

    def watch_near(self, generators: list[Any]) -> None:
        """The same for those that the loop's variables hold now; what they held before is let go."""
        here, known = {id(g) for g in generators}, {id(g) for g, _ in self._own}
        gone = self._near - here
        if gone or not here <= known:
            self._own = [(g, kept) for g, kept in self._own if id(g) not in gone]
            self.watch(generators)
            self._near = (self._near & here) | (here - known)

    def forget_others(self) -> None:
        """Generators of a training that is over are not captured, nor kept, any more."""
        self._own.clear()
        self._near.clear()
        self._areas = None

    def capture(self) -> RngState:
        """The state now; the same object as before where nothing has moved."""
        if (
            self._areas is not None
            and self._numpy_home._bit_generator is self._numpy_generator
            and (current() is None or not is_accelerator_started())
        ):
            if _joined(self._areas) != self._at:
                return self._look_at_each()
            for generator, pair in self._pythons:
                if generator.gauss_next != pair:
                    return self._look_at_each()
            return self._last  # type: ignore[return-value]  # there is one where there are areas
        return self._look_at_each()

    def _look_at_each(self) -> RngState:
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
            kept.look()
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
    """One generator: its last copy, and where the few bytes lie that tell whether it has moved.

    `python`: one of Python's own, which keeps the second of a pair of normal numbers as an attribute.
    """

    def __init__(
        self, copy: Callable[[], Any], areas: list[Any] | None, python: Any = None
    ) -> None:
        self.copy = copy
        self.areas = areas
        self.python = python if areas else None
        self._at: list[Any] | None = None
        self.state: Any = None

    def look(self) -> None:
        """Copy it if it has moved since the last look."""
        at = [area.raw for area in self.areas] if self.areas is not None else None
        if at is not None and self.python is not None:
            at.append(self.python.gauss_next)
        if at is None or at != self._at:
            self.state, self._at = self.copy(), at


def _kept(generator: Any) -> _Kept:
    """One that the training has made for itself; what cannot be looked at is copied every time."""
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
    """The generator behind `numpy.random.rand` and the like; None where NumPy is not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.mtrand._rand


def _area(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _python_areas(generator: random.Random) -> list[Any] | None:
    """Position and first word of Python's Mersenne twister."""
    base = id(generator) + object.__basicsize__
    area = _area(base, 8)
    words = generator.getstate()[1]
    if struct.unpack("<iI", area.raw) != (words[-1], words[0]):
        return None  # another interpreter lays it out differently
    return [area]


def _legacy_areas(home: Any) -> list[Any] | None:
    """The same for NumPy's global generator, with the second of a pair of normal numbers, which is kept
    beside it; None if it is of another kind."""
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
    first, position = _area(base, 4), _area(base + 2496, 4)
    is_there = struct.unpack("<Ii", first.raw + position.raw) == (int(words[0]), index)
    return [first, position, _area(id(home) + pair, 16)] if is_there else None


@functools.lru_cache(maxsize=1)
def _pair_offset() -> int | None:
    """Where in a `RandomState` its flag and its second normal number lie; tried out on one of our own."""
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
    """The state of NumPy's PCG64, and the half of a number that it keeps."""
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
    """The same for torch's, with the half of a pair of normal numbers that it keeps for later.

    Where they lie is found by their values, and tried out on a generator of our own.
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
    # Ahead of the words: seed, words left, seeded, next; behind them the normal numbers kept.
    head, tail = _area(address + start - 24, 28), _area(address + start + 2496, 40)
    where = struct.unpack_from("<Qii", head.raw, 4), struct.unpack_from("<i", head.raw, 20)
    if (where[0][0], where[0][1], where[1][0]) != (seed, left, position):
        return None
    return [head, tail]
