"""The runtime side of the journal: steps, checkpoints, layer health."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..devices import copy_out
from ..numerics.health import magnitudes
from ..report.journal import Journal, Listener, Row, journal_name
from .outside_modes import outside_user_code
from .state import TrainState

__all__ = ["DeviceRows", "LayerSampler", "RunJournal"]

_Timed = tuple[Row, float]
_clock = time.perf_counter


class RunJournal:
    """Writes the journal of one training."""

    def __init__(
        self,
        folder: str | Path,
        state: TrainState,
        about: Mapping[str, Any] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.file = Journal(
            Path(folder) / journal_name(0), about=about, listeners=listeners, stage=DeviceRows()
        )
        self.step: Callable[[Row], None] = self.file.append
        """Writes one step, as a row of the history."""
        self._layers = LayerSampler(state)

    def note_parts(self, parts: Mapping[str, Any]) -> None:
        """Add these to the line of the next step; detached, so that no graph is kept alive."""
        self.file.parts.update(
            (name, value.detach().clone() if isinstance(value, Tensor) else value)
            for name, value in parts.items()
        )

    def skipped(self, row: Row, flag: str) -> None:
        """Write a normal skip of the scaler."""
        self.file.parts = {}
        self.file.append((*row[:6], False, {"flags": [flag]}))

    def checkpoint(self, path: str, step: int, status: str, detail: str = "") -> None:
        """Write that a checkpoint was saved (`good`), refused (`refused`) or found corrupt (`bad`)."""
        if self.file.path.parent.absolute() / "incidents" in Path(path).absolute().parents:
            return  # a capsule of an incident, not a checkpoint
        self.file.event("checkpoint", step=step, path=path, status=status, detail=detail)

    def deep(self, step: int) -> None:
        """After a good deep check: write the health of each layer."""
        sample = self._layers.sample(step)
        if sample is not None:
            self.file.event("layers", step=step, **sample)

    def close(self, **fields: Any) -> None:
        self.file.close(**fields)


class DeviceRows:
    """Reads values from a device, in one asynchronous copy per batch of rows.

    Rows wait until their copy has arrived, at the latest until the next flush.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[list[_Timed], list[tuple[int, int]], Tensor, Any]] = deque()

    def __call__(self, rows: list[_Timed], is_last: bool) -> list[_Timed]:
        places, values = [], []
        for i, (row, _) in enumerate(rows):
            if type(row[2]) is float and row[3] is None and row[5] is None:
                continue  # as nearly all of them are where nothing has to be waited for
            for j in (2, 3, 5):
                value = row[j]
                if isinstance(value, Tensor) and value.device.type != "cpu":
                    places.append((i, j))
                    values.append(value.detach().reshape(()).to(torch.float32))
        if not values and not self._under_way:
            return rows
        self._submit(rows, places, values)
        return self._arrived(is_last)

    def _submit(
        self, rows: list[_Timed], places: list[tuple[int, int]], values: list[Tensor]
    ) -> None:
        event = None
        host = torch.empty(0)
        if values:
            stacked = torch.stack(values)
            host, event = copy_out(stacked)
        self._under_way.append((rows, places, host, event))

    def _arrived(self, is_last: bool) -> list[_Timed]:
        ready: list[_Timed] = []
        while self._under_way:
            rows, places, host, event = self._under_way[0]
            if event is not None and not event.query():
                # One batch of rows may be late; with a second one, wait.
                if not is_last and len(self._under_way) < 2:
                    break
                event.synchronize()
            self._under_way.popleft()
            changed = [(list(row), now) for row, now in rows]
            for (i, j), number in zip(places, host.tolist()):
                changed[i][0][j] = number
            ready += [(tuple(row), now) for row, now in changed]
        return ready


class LayerSampler:
    """Measures the largest weight, the gradient norm and the relative update of each layer.

    The cost is limited: `lines` samples per doubling of the run's length, and a `share` of its time.
    """

    def __init__(self, state: TrainState, lines: int = 128, share: float = 0.0025) -> None:
        self._state = state
        self._lines = lines
        self._share = share
        self._last = -1
        self._not_before = 0.0
        self._names: tuple[str, ...] = ()

    @outside_user_code
    @torch.no_grad()
    def sample(self, step: int) -> dict[str, Any] | None:
        """The measurements, or None if the last ones are recent enough."""
        if self._last >= 0 and step - self._last < max(1.0, step / self._lines):
            return None
        if (start := _clock()) < self._not_before:
            return None
        named = [(n, p) for n, p in self._state.parameters() if _is_plain(p)]
        if not named:
            return None
        self._last = step
        layers: dict[str, _Layer] = {}
        owners = [layers.setdefault(n.rpartition(".")[0] or n, _Layer(p)) for n, p in named]
        params = [p for _, p in named]
        for owner, figures in zip(owners, _figures(params, self._changes(step, params))):
            owner.take(*figures)
        num_steps = max(1, step + 1 - self._state.snapshot.tag)
        total = math.hypot(*(o.grad for o in layers.values() if o.grad is not None))
        sample: dict[str, Any] = {
            "weight": [_short(o.weight) for o in layers.values()],
            "grad": [_short(o.grad) for o in layers.values()],
            "update": [_short(o.update(num_steps)) for o in layers.values()],
        }
        if any(o.grad is not None for o in layers.values()):
            sample["grad_norm"] = _short(total)
        names = tuple(layers)
        if names != self._names:
            self._names = names
            sample["names"] = list(names)
            sample["dtypes"] = [o.dtype for o in layers.values()]
        now = _clock()
        self._not_before = now + (now - start) / self._share
        return sample

    def _changes(self, step: int, params: list[Tensor]) -> list[Tensor | None]:
        """The norm of each parameter's change since the snapshot; None where it is unknown."""
        snapshot = self._state.snapshot
        is_usable = snapshot.is_taken and step >= snapshot.tag
        places = snapshot.positions() if is_usable else {}
        return [snapshot.change_of(places[id(p)]) if id(p) in places else None for p in params]


class _Layer:
    """Accumulates the measurements of one layer; None for unknown ones."""

    def __init__(self, first: Tensor) -> None:
        self.dtype = str(first.dtype).removeprefix("torch.")
        self.weight = 0.0
        self.grad: float | None = None
        self._moved: float | None = None
        self._size = 0.0

    def take(self, weight: float, size: float, grad: float | None, moved: float | None) -> None:
        self.weight = weight if math.isnan(weight) else max(weight, self.weight)
        if grad is not None:
            self.grad = math.hypot(self.grad or 0.0, grad)
        if moved is not None:
            self._moved = math.hypot(self._moved or 0.0, moved)
            self._size = math.hypot(self._size, size)

    def update(self, num_steps: int) -> float | None:
        """The relative change of the layer per step."""
        return None if self._moved is None else self._moved / max(self._size, 1e-30) / num_steps


def _figures(
    params: list[Tensor], changes: list[Tensor | None]
) -> Iterator[tuple[float, float, float | None, float | None]]:
    """(largest weight, norm, gradient norm, norm of the change) of each parameter, in one read."""
    grads = [p.grad if p.grad is not None and _is_plain(p.grad) else None for p in params]
    there = [g for g in grads if g is not None]
    groups = [
        magnitudes(params),
        torch._foreach_norm(params, 2),
        torch._foreach_norm(there, 2) if there else (),
        [c for c in changes if c is not None],
    ]
    home = params[0].device
    numbers = iter(torch.stack([n.to(home, torch.float32) for g in groups for n in g]).tolist())
    largest, sizes = ([next(numbers) for _ in params] for _ in range(2))
    norms, moved = ([None if t is None else next(numbers) for t in ts] for ts in (grads, changes))
    return zip(largest, sizes, norms, moved)


def _is_plain(t: Tensor) -> bool:
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout == torch.strided
        and t.is_floating_point()
        and t.device.type != "meta"
        and t.numel() > 0
        and t.element_size() > 1
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
