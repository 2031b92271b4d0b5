"""A fix for LBFGS that goes too far within a step: the length of its steps is searched for."""

from __future__ import annotations

from functools import partial

from ...diagnose.evidence import Evidence
from ...diagnose.searched import is_in_search
from ...remedies import Candidate, apply, with_keyword
from .. import changes
from ..laboratory import Laboratory
from .setting_change import SettingChange, only_call

__all__ = ["line_search_change"]

_KEY, _VALUE = "line_search_fn", "strong_wolfe"


def line_search_change(lab: Laboratory, e: Evidence) -> SettingChange | None:
    """The optimizer with a line search, run from the last healthy state on."""
    is_of_search = bool(e.weights.searched) or is_in_search(e)
    if e.optimizer.get("type") != "LBFGS" or _KEY in e.optimizer or not is_of_search:
        return None
    built = only_call(lab, "LBFGS")
    if built is None:
        return None
    file, before, source, call = built
    after, done = apply(before, [with_keyword(source, call, _KEY, f'"{_VALUE}"')])
    run = partial(changes.with_setting, _KEY, _VALUE)
    return SettingChange(file, before, after, Candidate(done, after), run, is_from_snapshot=True)
