"""Searches for a source change that repairs a located failure, and runs each candidate."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...locate.slice import to_location
from ...records import Fix, Link, Proof, TensorStats
from ...remedies import (
    Candidate,
    Source,
    Symptom,
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
_SCALE = 8.0
_INVERTING = ("pow", "rsqrt", "reciprocal")
_FRESH = ("empty", "empty_like", "new_empty", "empty_strided")


@dataclass(frozen=True)
class _Place:
    """A line to change, and what failed there."""

    file: str
    line: int
    symptom: Symptom


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
    is_scaled = cause == "low_precision_overflow" and (e.is_backward or _is_scaled_loss(e))
    place = _place_of(e) if cause not in _NOT_THE_LINE and not is_scaled else None
    q = e.quotient if cause == "zero_denominator" else None
    if place is not None and q is not None and is_user_file(q.file):
        place = _Place(q.file, q.line, replace(place.symptom, operator="div"))
    text = text_of_file(place.file) if place is not None else None
    if place is not None and text is not None:
        place = replace(place, symptom=_for_cause(place.symptom, cause))
        yield _Search(lab, e, trial, place.file, text, place=place)
    is_scale = cause == "loss_scaling" and is_fixed_scale(lab) and not e.scale.is_stepped_again
    is_half = cause in ("low_precision_overflow", "low_precision_underflow")
    if is_scale or (is_half and not _is_scaled_loss(e)):
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
        place: _Place | None = None,
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
        self, text: str, place: _Place, before: tuple[Candidate, ...], depth: int
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
        self, made: tuple[Candidate, ...], depth: int, tried: _Place | None
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
        if place is None or tried is None or _is_same(place, tried, change):
            self.refuted.append(fix)
            return
        note = yield from self.trial.spoils(change, self.evidence.dtype, limits)
        if note and is_written:
            self.refuted.append(self._fix(made, change, replace(proof, note=note)))
            return
        yield from self._try_all(text, place, made, depth + 1)

    def _next_place(self, change: ChangedSource) -> Generator[Replay, ReplayResult, _Place | None]:
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
        return _Place(change.file, line, _symptom(e))

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


def _is_scaled_loss(e: Evidence) -> bool:
    """A scalar times another, or the last factor of a loss: a loss and its scale."""
    is_product = e.kernel == "mul" and all(s.num_elements == 1 for s in e.tensors)
    is_before = not e.is_backward and e.kernel != "mul"  # a value of the forward is not scaled
    return is_product or (not is_before and (e.scale.factor or 1.0) >= _SCALE)


def _for_cause(symptom: Symptom, cause: str | None) -> Symptom:
    """Patterns that depend on the cause and not only on the operator."""
    # The weights of all targets may be 0, which is an average over nothing as well.
    is_mean = cause == "empty_reduction" or symptom.operator.startswith("nll_loss")
    return replace(
        symptom,
        is_empty=symptom.is_empty or is_mean,
        is_exploding=cause == "exploding_gradient",
        is_infeasible=cause == "infeasible_target",
        is_discarded=cause == "masked_branch_leak",
    )


def _is_same(place: _Place, tried: _Place, change: ChangedSource) -> bool:
    """The same operator of the same line, so the change did not help."""
    lines = (tried.line, change.line_after(tried.line))
    return place.line in lines and place.symptom.operator == tried.symptom.operator


def _place_of(e: Evidence) -> _Place | None:
    location = e.location
    if location.file is None or location.line is None or not is_user_file(location.file):
        return None
    mask = next((c for c in location.chain if c.role == "sentinel" and c.file and c.line), None)
    symptom = _symptom(e)
    if symptom.is_masked and mask is not None and _is_apart(mask, location.line, location.file):
        assert mask.file is not None and mask.line is not None
        if is_user_file(mask.file):
            return _Place(mask.file, mask.line, symptom)
    return _Place(location.file, location.line, symptom)


def _is_apart(mask: Link, line: int, file: str) -> bool:
    """Whether the mask was written in another function than the one that fails."""
    if mask.file != file or mask.line is None:
        return True
    text = text_of_file(file)
    source = Source(text) if text else None
    return source is not None and source.function_at(mask.line) is not source.function_at(line)


def _symptom(e: Evidence) -> Symptom:
    operator = e.forward_name if e.is_backward else e.kernel
    operator = "pow" if operator.startswith("pow") else operator
    divisor = e.at_bad("tensor2", "other")
    whole = e.operand("tensor2", "other")
    stats = whole.stats if whole is not None else None
    counted = e.operand("self") if operator in _INVERTING else whole
    is_private = operator in ("_softmax", "_log_softmax", "_ctc_loss")
    return Symptom(
        operator=operator if is_private else operator.lstrip("_"),
        dtype=e.dtype,
        is_masked=any(c.facts.get("rows_all_neginf", 0.0) > 0 for c in e.location.chain),
        is_empty=e.birth is not None and e.birth.facts.get("num_reduced", 2.0) <= 1.0,
        is_count=counted is not None and _is_count(counted.stats),
        can_be_negative=stats is not None and stats.min is not None and stats.min < 0,
        is_plain_number=divisor is None and e.number("other") == 0,
        is_distribution="distributions" in (e.location.library_file or ""),
    )


def _is_count(stats: TensorStats | None) -> bool:
    """Whether these are integers; a maximum of 1 may be that of probabilities."""
    if stats is None or stats.min is None or stats.max is None:
        return False
    if not stats.dtype.startswith(("float", "bfloat")):
        return True
    is_whole = float(stats.max).is_integer() and float(stats.min).is_integer()
    return is_whole and stats.min >= 0 and stats.max > 1
