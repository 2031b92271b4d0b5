"""Searches for a source change that repairs a located failure, and runs each candidate."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...locate.slice import to_location
from ...records import Fix, Proof
from ...remedies import (
    Candidate,
    Source,
    candidates,
    is_equivalent,
    is_flat,
    is_shift,
    room_of,
    unified_diff,
)
from ...runtime.window import Replay, ReplayResult
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, NotRunnable, functions_of, text_of_file
from .batch_rows import rows_change
from .clip_order import clip_order_change
from .first_values import first_values_change
from .layer_change import layer_changes
from .line_search import line_search_change
from .pipeline_change import pipeline_changes
from .place import Place, for_cause, is_same, is_scaled_loss, place_of, symptom_of
from .precision_change import precision_changes
from .resume_change import resume_changes
from .scale_change import is_fixed_scale, scale_changes
from .schedule_change import schedule_changes
from .setting_change import SettingChange, loss_change, memory_changes, optimizer_change, shown_path
from .trial import Trial

__all__ = ["proved_fixes"]

_MAX_TRIALS = 14
_MAX_LINES = 3
_MAX_REFUTED = 2
_MAX_SCHEDULES = 3
_FRESH = ("empty", "empty_like", "new_empty", "empty_strided")


_NOT_THE_LINE = {"lr_divergence", "resume_mismatch", "loss_scaling", "bad_schedule",
                 "corrupt_checkpoint", "hardware_or_nondeterminism", "bad_input_data",
                 "bad_preprocessing", "bad_initialization"}  # fmt: skip
"""Causes for which the line only shows the effect, which a change of it would hide."""
_BY_CAUSE = {"resume_mismatch": resume_changes, "loss_scaling": scale_changes, "bad_schedule": schedule_changes,
             "zero_denominator": layer_changes}  # fmt: skip


def proved_fixes(
    lab: Laboratory, evidence: Evidence, cause: str | None, seconds: float
) -> Generator[Replay, ReplayResult, tuple[Fix, ...]]:
    """Find the first change that is proved, as a diff with its proof; other changes come before it."""
    if not lab.can_replay:
        return ()
    location = evidence.location
    solved = lab.investigation.engine.known.solved
    key = (cause, location.op, location.file, location.line)
    if key in solved:
        again = yield from _holds_again(lab, *solved[key])
        if again is not None:
            return (again,)
    refuted: list[Fix] = []
    for search in _searches(lab, evidence, cause, seconds):
        yield from search.run()
        if search.proved is not None:
            assert search.change is not None
            solved[key] = (search.change, search.proved, lab.window.step)
            return (search.proved, *(*refuted, *search.refuted)[:_MAX_REFUTED])
        refuted += search.refuted
    return tuple(refuted[:_MAX_REFUTED])


def _holds_again(
    lab: Laboratory, change: Any, fix: Fix, step: int
) -> Generator[Replay, ReplayResult, Fix | None]:
    """Run a change that was proved for the same place before."""
    with lab.restored():
        lab.start_of(lab.window)
        result = yield Replay(window=lab.window, change=change, is_applied=lab.needs_step)
    if result.failure is not None or not result.is_complete or fix.proof is None:
        return None
    note = fix.proof.note or f"the other steps were run for step {step}"
    return replace(fix, proof=replace(fix.proof, note=note))


def _searches(lab: Laboratory, e: Evidence, cause: str | None, seconds: float) -> Iterator[_Search]:
    """The places to change, in order: the batch's rows, the line of a setting, the line itself."""
    trial = Trial(lab, seconds)
    if cause in ("bad_input_data", "bad_preprocessing"):
        if cause == "bad_preprocessing":
            for setting in pipeline_changes(lab, e):
                yield _Search(lab, e, trial, setting.file, setting.before, setting=setting)
        rows = rows_change(lab, e)
        if rows is not None:
            yield _Search(lab, e, trial, rows.file, rows.before, only=rows.candidate)
        return
    for setting in _settings(lab, e, cause):
        yield _Search(lab, e, trial, setting.file, setting.before, setting=setting)
    # A gradient that overflows in float16 was scaled, or grows elsewhere: no single line is the cause.
    is_scaled = cause == "low_precision_overflow" and (e.is_backward or is_scaled_loss(e))
    place = place_of(e) if cause not in _NOT_THE_LINE and not is_scaled else None
    q = e.quotient if cause == "zero_denominator" else None
    if place is not None and q is not None and is_user_file(q.file):
        place = Place(q.file, q.line, replace(place.symptom, operator="div"))
    text = text_of_file(place.file) if place is not None else None
    if place is not None and text is not None:
        place = replace(place, symptom=for_cause(place.symptom, cause))
        yield _Search(lab, e, trial, place.file, text, place=place)
    is_scale = cause == "loss_scaling" and is_fixed_scale(lab) and not e.scale.is_stepped_again
    is_half = cause in ("low_precision_overflow", "low_precision_underflow")
    if is_scale or (is_half and not is_scaled_loss(e)):
        for setting in precision_changes(lab, e):
            yield _Search(lab, e, trial, setting.file, setting.before, setting=setting)


def _settings(lab: Laboratory, e: Evidence, cause: str | None) -> Iterator[SettingChange]:
    """Changes of a line that has run in the past, if the cause points to one."""
    own = _BY_CAUSE.get(cause or "")
    if own is not None:
        limit = _MAX_SCHEDULES if cause == "bad_schedule" else None
        yield from itertools.islice(own(lab, e), limit)
        return
    if cause == "uninitialized_memory" and e.memory is not None:
        yield from memory_changes(lab, e)
    if cause in ("lr_divergence", "exploding_gradient"):
        made = (clip_order_change(lab), line_search_change(lab, e))
        yield from (change for change in made if change is not None)
    found: SettingChange | None
    if e.is_in_library_optimizer and cause in ("optimizer_denominator", "domain_error"):
        found = optimizer_change(lab, e)
    elif cause == "bad_initialization":
        found = first_values_change(lab, e)
    else:
        found = loss_change(lab, e)
    if found is not None:
        yield found


class _Search:
    """Tries candidates in order; if another line fails then, candidates for both together."""

    def __init__(
        self,
        lab: Laboratory,
        evidence: Evidence,
        trial: Trial,
        file: str,
        text: str,
        *,
        place: Place | None = None,
        only: Candidate | None = None,
        setting: SettingChange | None = None,
    ) -> None:
        self.lab = lab
        self.evidence = evidence
        self.trial = trial
        self.file = file
        self.text = text
        self.place = place
        self.only = only
        self.setting = setting
        self.proved: Fix | None = None
        self.change: ChangedSource | SettingChange | None = None
        """The proved change, as it is run."""
        self.refuted: list[Fix] = []
        self.num_trials = 0
        self._seen: set[str] = set()
        self._functions: list[FunctionType] | None = None

    def run(self) -> Generator[Replay, ReplayResult, None]:
        if self.setting is not None:
            yield from self._try_setting(self.setting)
        elif self.only is not None:
            yield from self._try((self.only,), _MAX_LINES, None)
        elif self.place is not None:
            yield from self._try_all(self.text, self.place, (), 1)

    def _try_all(
        self, text: str, place: Place, before: tuple[Candidate, ...], depth: int
    ) -> Generator[Replay, ReplayResult, None]:
        source = Source(text, dtype=place.symptom.dtype, kernel=place.symptom.operator)
        for candidate in candidates(source, place.line, place.symptom):
            if self.proved is not None:
                return
            if candidate.text in self._seen or self._is_over:
                continue
            if not self.trial.can_compare and not is_equivalent((*before, candidate)):
                continue  # it is unknown whether it computes the same as before
            self._seen.add(candidate.text)
            yield from self._try((*before, candidate), depth, place)

    def _try_setting(self, setting: SettingChange) -> Generator[Replay, ReplayResult, None]:
        """A change of what a line has set."""
        if setting.beyond is not None:
            further = replace(setting, apply=setting.beyond, beyond=None)
            proof, _ = yield from self.trial.prove_since(further, setting.at)
            if not proof.is_step_finite:
                return
        change: ChangedSource | SettingChange = setting
        if setting.ways:
            for change in setting.ways:
                proof, result = yield from self.trial.prove_since(change, setting.at)
                if proof.is_step_finite or not self.trial.has_time:
                    break
            proof = replace(proof, note=f"{proof.note} ({setting.note})")
        elif setting.is_from_snapshot:
            proof, result = yield from self.trial.prove_since(setting, setting.at)
        else:
            kind, room = self.evidence.dtype, setting.room
            proof, result = yield from self.trial.prove(setting, kind, is_exact=room > 0, room=room)
            proof = replace(proof, note=proof.note or setting.note)
        fix = self._fix((setting.candidate,), setting, proof)
        if fix.status == "proved":
            self.proved, self.change = fix, change
        elif result.is_complete or result.failure is not None:
            self.refuted.append(fix)

    @property
    def _is_over(self) -> bool:
        return self.num_trials >= _MAX_TRIALS or not self.trial.has_time

    def _try(
        self, made: tuple[Candidate, ...], depth: int, tried: Place | None
    ) -> Generator[Replay, ReplayResult, None]:
        text = made[-1].text
        if self._functions is None:
            self._functions = functions_of(self.file)
        try:
            change = ChangedSource(self.file, self.text, text, self._functions)
        except NotRunnable:
            return
        self.num_trials += 1
        limits = tried is not None and tried.symptom.is_exploding
        is_written = self.evidence.kernel not in _FRESH
        proof, result = yield from self.trial.prove(
            change,
            self.evidence.dtype,
            limits,
            is_compared=is_written,
            is_flat=is_flat(made),
            is_exact=is_shift(made),
            room=room_of(made),
        )
        fix = self._fix(made, change, proof)
        if fix.status == "proved" and not proof.num_healthy and not is_equivalent(made):
            return  # it is unknown whether it computes the same as before
        if fix.status == "proved":
            self.proved, self.change = fix, change
            return
        if not result.is_complete and result.failure is None:
            return  # it did not run, which proves nothing
        if proof.is_step_finite or depth >= _MAX_LINES or self._is_over:
            self.refuted.append(fix)
            return
        place = yield from self._next_place(change)
        if place is None or tried is None or is_same(place, tried, change):
            self.refuted.append(fix)
            return
        note = yield from self.trial.healthy_effect(change, self.evidence.dtype, limits)
        if note and is_written:
            self.refuted.append(self._fix(made, change, replace(proof, note=note)))
            return
        yield from self._try_all(text, place, made, depth + 1)

    def _next_place(self, change: ChangedSource) -> Generator[Replay, ReplayResult, Place | None]:
        """The place where the step, or a later batch, fails now, if it is in the same file."""
        with self.lab.restored():
            result = yield from self.lab.traced(window=self.trial.failed_ahead, change=change)
        origin = result.origin
        if origin is None or origin.birth is None:
            return None
        location = to_location(origin, "replay")
        if location.file == change.name and location.line is not None:
            line = location.line
        elif location.file == change.file and location.line is not None:
            line = change.line_after(location.line)
        else:
            return None
        e = replace(self.evidence, location=location)
        return Place(change.file, line, symptom_of(e))

    def _fix(
        self, made: tuple[Candidate, ...], change: ChangedSource | SettingChange, proof: Proof
    ) -> Fix:
        remedies = [r for c in made for r in c.remedies]
        titles = list(dict.fromkeys(r.title for r in remedies))
        reasons = list(dict.fromkeys(r.why for r in remedies))
        has_held = proof.is_step_finite and not proof.note.startswith(("it ", "step "))
        return Fix(
            title="; and ".join(titles),
            why="; ".join(reasons),
            status="proved" if has_held else "refuted",
            file=self.file,
            line=remedies[0].line,
            diff=unified_diff(shown_path(self.file), change.before, change.after),
            proof=proof,
            remedy="+".join(dict.fromkeys(r.name for r in remedies)),
            file_sha256=change.sha256,
        )
