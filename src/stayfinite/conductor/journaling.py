"""The run's journal as the conductor keeps it: steps, incidents, and how the layers are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..records import Incident
from ..report.journal import Journal, Listener, Row, journal_name
from ..report.text import headline
from .state import TrainState

__all__ = ["LayerSampler", "RunJournal", "Stage"]

_Timed = tuple[Row, float]


class RunJournal:
    """What one training writes into its run folder while it runs."""

    def __init__(
        self,
        folder: str | Path,
        state: TrainState,
        about: Mapping[str, Any] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        rank = int(os.environ.get("RANK", "0") or 0)
        self.journal = Journal(
            Path(folder) / journal_name(rank), about=about, listeners=listeners, stage=Stage()
        )
        self.parts: dict[str, Any] = {}
        self._layers = LayerSampler(state)

    def note_parts(self, parts: Mapping[str, Any]) -> None:
        """Go with the next step's line; detached, so that no graph is kept alive."""
        self.parts.update(
            (name, value.detach().clone() if isinstance(value, Tensor) else value)
            for name, value in parts.items()
        )

    def step(self, row: Row) -> None:
        """One step as the history has it."""
        if self.parts:
            row = (*row, {"parts": self.parts})
            self.parts = {}
        self.journal.append(row)

    def skipped(self, row: Row, flag: str) -> None:
        """A step that was not applied though nothing is wrong: the scaler's own skip."""
        self.parts = {}
        self.journal.append((*row[:6], False, {"flags": [flag]}))

    def incident(self, incident: Incident) -> None:
        """The failed step, and the incident beside it."""
        event, self.parts = incident.event, {}
        self.journal.append(
            (
                event.step,
                event.epoch,
                event.loss,
                event.grad_norm,
                event.lr,
                event.scale,
                False,
                {"flags": ["incident"]},
            )
        )
        self.journal.event(
            "incident",
            step=event.step,
            id=incident.id,
            text=headline(incident),
            symptom=event.symptom,
            phase=event.phase,
            cause=incident.diagnosis.cause,
            op=incident.location.op,
            module=incident.location.module,
            action=incident.action.kind,
            rank=event.rank,
        )

    def checkpoint(self, path: str, step: int, status: str, detail: str = "") -> None:
        """A checkpoint was written (`good`), held back (`refused`) or found corrupt (`bad`)."""
        if self.journal.path.parent.absolute() / "incidents" in Path(path).absolute().parents:
            return  # what an incident saves for its replay is no checkpoint of the user's
        self.journal.event("checkpoint", step=step, path=path, status=status, detail=detail)

    def deep(self, step: int) -> None:
        """A deep check found everything finite: a good moment to look at each layer."""
        sample = self._layers.sample(step)
        if sample is not None:
            self.journal.event("layers", step=step, **sample)

    def close(self, **fields: Any) -> None:
        self.journal.close(**fields)


class Stage:
    """Reads values that live on a device, all of a batch in one copy that nobody waits for.

    Rows are held back until their copy has arrived, at the latest until the next flush.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[list[_Timed], list[tuple[int, int]], Tensor, Any]] = deque()

    def __call__(self, rows: list[_Timed], is_last: bool) -> list[_Timed]:
        places, values = [], []
        for i, (row, _) in enumerate(rows):
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
            is_cuda = stacked.device.type == "cuda"
            host = torch.empty(len(values), pin_memory=is_cuda)
            host.copy_(stacked, non_blocking=is_cuda)
            if is_cuda:
                event = torch.cuda.Event()
                event.record()
        self._under_way.append((rows, places, host, event))

    def _arrived(self, is_last: bool) -> list[_Timed]:
        ready: list[_Timed] = []
        while self._under_way:
            rows, places, host, event = self._under_way[0]
            if event is not None and not event.query():
                # One batch may be late; a second one means that somebody has to wait.
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
    """Largest weight, gradient norm and relative update of each layer, seldom enough to be free."""

    def __init__(self, state: TrainState, lines: int = 128) -> None:
        self._state = state
        self._lines = lines
        self._last = -1
        self._names: tuple[str, ...] = ()

    @torch.no_grad()
    def sample(self, step: int) -> dict[str, Any] | None:
        """The figures, or None when the last ones are still fresh enough for this run's length."""
        if self._last >= 0 and step - self._last < max(1.0, step / self._lines):
            return None
        named = [(n, p) for n, p in self._state.parameters() if _is_plain(p)]
        if not named:
            return None
        before = self._before(step)
        layers: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        for name, p in named:
            layers.setdefault(name.rpartition(".")[0] or name, []).append((p, before.get(id(p))))
        self._last = step
        figures = [_figures(pairs, self._per_step(step)) for pairs in layers.values()]
        rows = torch.stack(figures).tolist()
        total = sum(row[1] ** 2 for row in rows if row[1] >= 0)
        names = tuple(layers)
        sample: dict[str, Any] = {
            "weight": [_short(r[0]) for r in rows],
            "grad": [_short(r[1]) for r in rows],
            "update": [_short(r[2]) for r in rows],
        }
        if any(row[1] >= 0 for row in rows):
            sample["grad_norm"] = _short(total**0.5)
        if names != self._names:
            self._names = names
            sample["names"] = list(names)
            sample["dtypes"] = [str(p[0][0].dtype).removeprefix("torch.") for p in layers.values()]
        return sample

    def _before(self, step: int) -> dict[int, Tensor]:
        snapshot = self._state.snapshot
        if not snapshot.is_taken or step < snapshot.tag:
            return {}
        return {
            id(live): kept
            for live, kept in zip(snapshot._live, snapshot._kept)
            if kept.device == live.device
        }

    def _per_step(self, step: int) -> int:
        return max(1, step + 1 - self._state.snapshot.tag)


def _figures(pairs: list[tuple[Tensor, Tensor | None]], num_steps: int) -> Tensor:
    """(largest weight, gradient norm, update per step); -1 for what is not known."""
    weights = torch._foreach_norm([p for p, _ in pairs], float("inf"))
    largest = torch.stack([w.float().cpu() for w in weights]).max()
    unknown = torch.tensor(-1.0)
    grads = [p.grad for p, _ in pairs if p.grad is not None and _is_plain(p.grad)]
    norm = _total(torch._foreach_norm(grads, 2)) if grads else unknown
    moved = [(p, kept) for p, kept in pairs if kept is not None]
    update = unknown
    if moved:
        # One tensor at a time: never a second copy of the whole model.
        steps = _total([torch.linalg.vector_norm((p - kept).float()) for p, kept in moved])
        size = _total(torch._foreach_norm([p for p, _ in moved], 2))
        update = steps / size.clamp(min=1e-30) / num_steps
    return torch.stack([largest, norm, update])


def _total(norms: Sequence[Tensor]) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.float().cpu() for n in norms]))
    return total


def _is_plain(t: Tensor) -> bool:
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout == torch.strided
        and t.is_floating_point()
        and t.device.type != "meta"
        and t.numel() > 0
        and t.element_size() > 1
    )


def _short(value: float) -> float | None:
    return None if value == -1 else float(f"{value:.4g}")
