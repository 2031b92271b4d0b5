"""Finds the cause: gathers evidence, applies the rules, runs experiments, applies the rules again."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from ..diagnose.evidence import Data, Evidence
from ..diagnose.rank import Ranked, conclude, consider, is_said_by, wanted_experiments
from ..diagnose.searched import clip_fix, rate_fix
from ..locate.slice import Origin
from ..locate.trace import OpTrace
from ..patches.loaders import samples
from ..records import Culprit, Diagnosis, Fix, Incident, Link, Location
from ..runtime.rows import num_rows
from ..runtime.warn.untrained import untrained_leaves
from ..runtime.window import Replay, ReplayResult
from . import experiments as _experiments  # each registers itself
from .capsule import save_capsule
from .evidence.culprit import CULPRITS, culprit_of
from .evidence.data_facts import worker_of
from .evidence.gather import gather
from .evidence.indices import first_bad
from .evidence.own_update import own_update
from .fixes.fix_search import proved_fixes
from .fixes.rate_change import setting_diff
from .fixes.untrained_change import with_parameters
from .investigation import Investigation
from .laboratory import Laboratory, short_place
from .outlook import try_settings

__all__ = ["diagnose", "diagnose_plain"]

assert _experiments.__all__

_PER_SAMPLE = {
    "low_precision_overflow", "low_precision_underflow", "log_of_zero", "domain_error",
    "zero_denominator", "singular_gradient", "masked_branch_leak", "fully_masked_row", "exp_overflow",
    "infeasible_target", "degenerate_linalg", "bad_input_data", "bad_preprocessing",
}  # fmt: skip


def diagnose(
    investigation: Investigation, incident: Incident, origin: Origin | None
) -> Generator[Replay, ReplayResult, Incident]:
    """Diagnose the incident; the training is left unchanged."""
    seconds = investigation.engine.settings.diagnose_seconds
    evidence = replace(
        gather(investigation, incident, origin, seconds),
        own_update=own_update(investigation, incident, origin),
    )
    lab = Laboratory(investigation, origin, seconds)
    ranked = consider(evidence)
    while True:
        name = next(iter(wanted_experiments(ranked, evidence)), None)
        if name is None or _is_settled(ranked, evidence):
            break
        outcome = yield from lab.run(name, evidence)
        evidence = replace(
            evidence.with_result(name, outcome), rate=lab.rate, clip=lab.clip, quotient=lab.quotient
        )
        ranked = consider(evidence)
    rows = lab.rows
    if not rows and ranked and ranked[0].cause in _PER_SAMPLE:
        rows = yield from lab.bisect()
    ranks = investigation.engine.ranks
    if investigation.engine.policy.is_adaptive and not ranks.has_others and not ranks.is_apart:
        evidence = yield from try_settings(investigation, lab, evidence)
        ranked = consider(evidence)
    diagnosis = conclude(ranked, evidence, lab.tried, rows, _indices(investigation, rows))
    if evidence.data is not None:
        diagnosis = replace(diagnosis, worker=worker_of(investigation.window))
    if investigation.outlook is not None:
        diagnosis = _with_passed_settings(diagnosis, evidence)
    diagnosis = yield from _with_diffs(lab, evidence, diagnosis, seconds)
    if lab.also and not any(f.status == "proved" and f.diff for f in diagnosis.fixes):
        diagnosis = _with_other_lines(diagnosis, lab.also)
    if note := save_capsule(investigation, incident):
        diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, note))
    location = _place(incident.location, evidence.own_update or evidence.data)
    location = replace(location, culprit=_culprit(investigation, evidence, diagnosis.cause))
    sizes = {num_rows(ref.value) for ref in investigation.window.batches}
    size = sizes.pop() if len(sizes) == 1 else None  # of accumulated batches: all of one size
    location = replace(location, first_bad=first_bad(location, size))
    return replace(incident, diagnosis=diagnosis, location=location)


def _culprit(investigation: Investigation, evidence: Evidence, cause: str | None) -> Culprit | None:
    """The line that set the cause. An error here must not end the investigation."""
    if cause not in CULPRITS:
        return None
    try:
        return culprit_of(investigation, evidence, cause)
    except Exception:
        if OpTrace.is_strict:
            raise
        return None


def _with_diffs(
    lab: Laboratory, evidence: Evidence, diagnosis: Diagnosis, seconds: float
) -> Generator[Replay, ReplayResult, Diagnosis]:
    """Add changes of the source: proved ones come first, then the advice of the rules, then the others."""
    made = yield from proved_fixes(lab, evidence, diagnosis.cause, seconds)
    leaves = untrained_leaves(lab.state)
    if leaves:
        made = yield from with_parameters(lab, made, leaves, seconds)
    first = [f for f in made if f.status == "proved"]
    rest = [f for f in made if f.status != "proved"]
    known = []
    for fix in diagnosis.fixes:
        if any(is_said_by(f, fix, diagnosis.cause) for f in first):
            continue
        is_found = fix.status == "proved"  # by a search, as a value
        known.append((yield from setting_diff(lab, evidence, fix)) if is_found else fix)
    return replace(diagnosis, fixes=(*first, *known, *rest))


def _with_passed_settings(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """If the state has diverged, the learning rate or clipping that passed comes first, whatever the cause."""
    if any(f.experiment in ("smaller_lr", "clipped") for f in diagnosis.fixes):
        return diagnosis
    passed = [(evidence.rate, rate_fix(evidence)), (evidence.clip, clip_fix(evidence))]
    found = [
        fix
        for searched, fix in passed
        if searched is not None and searched.passed is not None and fix is not None
    ]
    return replace(diagnosis, fixes=(*found, *diagnosis.fixes))


def _with_other_lines(diagnosis: Diagnosis, also: tuple[Link, ...]) -> Diagnosis:
    """If the step fails at several lines, a repair of the first alone does not help: add the others."""
    fixes = tuple(
        Fix(
            title=f"and repair {short_place(link)} as well",
            why="with the line above repaired alone, the same step fails here",
            file=link.file,
            line=link.line,
            experiment="patched_operator",
        )
        for link in also
    )
    first, rest = diagnosis.fixes[:1], diagnosis.fixes[1:]
    return replace(diagnosis, fixes=(*first, *fixes, *rest))


def diagnose_plain(investigation: Investigation, incident: Incident, **results: str) -> Incident:
    """Diagnose without further experiments, from the given results."""
    evidence = gather(investigation, incident, None, 0.0)
    for name, outcome in results.items():
        evidence = evidence.with_result(name, outcome)
    diagnosis = conclude(consider(evidence), evidence, [])
    culprit = _culprit(investigation, evidence, diagnosis.cause)
    location = replace(incident.location, culprit=culprit)
    return replace(incident, diagnosis=diagnosis, location=location)


def _is_settled(ranked: list[Ranked], evidence: Evidence) -> bool:
    """Whether the first cause is proved or far ahead, and one of its fixes works."""
    if not ranked:
        return True
    first = ranked[0]
    is_ahead = len(ranked) == 1 or first.score - ranked[1].score > 0.3 or first.status == "verified"
    tried = [evidence.results.get(f.experiment) for f in first.finding.fixes if f.experiment]
    return is_ahead and "finite" in tried


def _indices(investigation: Investigation, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The positions of these rows in the data set, if the sampler is known."""
    if len(investigation.window.batches) != 1 or not rows:
        return ()
    ref = investigation.window.batches[0]
    is_listed = isinstance(ref.loader, (list, tuple))
    known = ref.indices
    if is_listed or samples.iterator is None or not known or len(known) != num_rows(ref.value):
        return ()
    return tuple(int(known[r]) for r in rows if isinstance(known[r], int))


def _place(location: Location, data: Data | None) -> Location:
    """For a fault in the data pipeline or in the script's own update: its line, instead of the first that used the
    batch or the weights.
    """
    if data is None or data.file is None or data.origin != "pipeline":
        return location
    return replace(
        location,
        file=data.file,
        line=data.line,
        source=data.source,
        function=data.function,
        library_file=None,
        library_line=None,
        library_source=None,
    )
