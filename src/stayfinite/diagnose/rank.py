"""Combines findings to one diagnosis; causes verified by an experiment come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..records import Candidate, Diagnosis, Experiment, Fix
from .evidence import Evidence
from .figures import figures
from .registry import Finding, Rule, all_rules, check_finding
from .words import written_in_source

__all__ = ["Ranked", "conclude", "consider", "is_said_by", "wanted_experiments"]

_CLOSE = 0.4
_MAX_CANDIDATES = 5
_UNPROVED = 0.9
"""The maximum confidence of a cause that no experiment has verified."""
_PLACE_ONLY = "patched_operator"
"""Keeping a line finite proves where the value was born, but not why."""


@dataclass(frozen=True)
class Ranked:
    """A cause that a rule found, with the results of the experiments."""

    cause: str
    finding: Finding
    status: str
    score: float


def consider(evidence: Evidence, rules: Iterable[Rule] | None = None) -> list[Ranked]:
    """Every cause that applies, the most likely first."""
    best: dict[str, Ranked] = {}
    for rule in rules if rules is not None else all_rules():
        finding = check_finding(rule, rule.applies(evidence))
        if finding is None or finding.confidence <= 0.0:
            continue
        status = _status(finding, evidence)
        score = _score(finding.confidence, status)
        known = best.get(rule.cause)
        if known is None or known.score < score:
            best[rule.cause] = Ranked(rule.cause, finding, status, score)
    return sorted(best.values(), key=lambda r: -r.score)


def _status(finding: Finding, evidence: Evidence) -> str:
    outcome = evidence.results.get(finding.proof or "", "not_run")
    return {"finite": "verified", "nonfinite": "refuted"}.get(outcome, "untried")


def _shown_confidence(r: Ranked, evidence: Evidence) -> float:
    """Only an experiment gives more than 0.9."""
    tried = [
        r.finding.proof,
        *(f.experiment for f in r.finding.fixes if f.experiment != _PLACE_ONLY),
    ]
    is_proved = any(evidence.results.get(name or "") == "finite" for name in tried)
    return round(min(r.score, 0.99 if is_proved else _UNPROVED), 2)


def _score(confidence: float, status: str) -> float:
    """Verified causes use the upper half of the scale, refuted ones the lowest tenth."""
    if status == "verified":
        return 0.5 + confidence / 2
    return confidence * (0.1 if status == "refuted" else 1.0)


def wanted_experiments(ranked: list[Ranked], evidence: Evidence) -> list[str]:
    """The experiments to run next, the most informative first."""
    if not ranked:
        return []
    found: list[str] = []
    near = [r for r in ranked if r.score >= ranked[0].score - _CLOSE]
    for r in near:
        found += [*([r.finding.proof] if r.finding.proof else []), *r.finding.wants]
    found += [f.experiment for f in ranked[0].finding.fixes if f.experiment]
    unique = list(dict.fromkeys(found))
    return [name for name in unique if name not in evidence.results]


def conclude(
    ranked: list[Ranked],
    evidence: Evidence,
    experiments: Iterable[Experiment],
    samples: tuple[int, ...] = (),
    dataset_indices: tuple[int, ...] = (),
) -> Diagnosis:
    """Make the diagnosis."""
    tried = tuple(experiments)
    if not ranked:
        summary = written_in_source(evidence)
        return Diagnosis(summary=summary, experiments=tried, observed=figures(evidence))
    first = ranked[0]
    fixes = [_judged(f, evidence) for f in first.finding.fixes]
    fixes.sort(key=lambda f: _ORDER[f.status])
    if fixes:  # "or …" needs something before it, after sorting by the experiments
        fixes[0] = replace(fixes[0], title=fixes[0].title.removeprefix("or "))
    return Diagnosis(
        cause=first.cause,
        confidence=_shown_confidence(first, evidence),
        summary=first.finding.sentence,
        evidence=first.finding.facts,
        fixes=tuple(fixes),
        experiments=tried,
        candidates=tuple(
            Candidate(
                cause=r.cause,
                confidence=_shown_confidence(r, evidence),
                reason=r.finding.sentence,
                status=r.status,
            )
            for r in ranked[:_MAX_CANDIDATES]
        ),
        samples=samples,
        dataset_indices=dataset_indices,
        observed=figures(evidence),
    )


_ORDER = {"proved": 0, "untried": 1, "refuted": 2}


def _judged(fix: Fix, evidence: Evidence) -> Fix:
    """A failing experiment refutes the advice; a succeeding one proves the cause, but not the words of the advice.

    The result of a search is proved, because exactly the proposed value was run.
    """
    outcome = evidence.results.get(fix.experiment or "", "not_run")
    is_refuted = outcome == "nonfinite" and fix.experiment != "patched_operator"
    return replace(fix, status="refuted") if is_refuted and fix.status != "proved" else fix


_DIVERGING = ("lr_divergence", "exploding_gradient")
_SAME = (
    (("log_space", "normalized_in", "logsumexp", "log_of_share", "softmax", "with_logits", "log_cosh", "softplus",
      "logaddexp", "sigmoid", "tanh"),
     ("log space", "logsumexp", "log_softmax", "with_logits", "bound what goes in")),
    (("floor_", "norm", "bound_arc", "inside_unit", "above_minus", "log1p", "logit", "hypot", "nonzero",
      "eps_for", "atan2", "acosh", "above_one"),
     ("safe_", "clamp", "floor", "eps", "inside its domain", "away from zero")),
    (("bound_exp", "shift_exp"), ("safe_exp", "bound what goes in")),
    (("finite_mask", "open_"), ("mask", "finfo")),
    (("mask_first",), ("mask before the operation",)),
    (("float32",), ("float32", "float()")),
    (("mean_or", "loss_or", "nan_to_zero", "spread_of_one"), ("masked_mean", "safe_std", "max(", "empty", "skip")),
    (("zero_infinity",), ("zero_infinity",)),
    (("zeros", "zeroed"), ("zeros", "initialize")),
    (("drop_rows",), ("drop", "clean")),
)  # fmt: skip
"""The beginnings of titles of remedies, and the words of advice with the same meaning."""


def is_said_by(proved: Fix, advice: Fix, cause: str | None) -> bool:
    """Whether a proved diff already contains this advice.

    For a diverging training, advice to limit its updates is kept; for other causes a smaller rate would only hide them. A
    second line that has to be repaired is part of the diff.

    >>> mask = Fix(title="", why="", status="proved", remedy="finite_mask")
    >>> is_said_by(mask, Fix(title="or mask with torch.finfo(scores.dtype).min", why=""), None)
    True
    >>> is_said_by(mask, Fix(title="drop empty sequences when the batch is made", why=""), None)
    False
    """
    if advice.status == "refuted":
        return False
    if advice.experiment in ("smaller_lr", "clipped"):
        return cause not in _DIVERGING
    if advice.title.startswith("and repair "):
        return "+" in (proved.remedy or "")
    names = (proved.remedy or "").split("+")
    words = [w for heads, means in _SAME if any(n.startswith(heads) for n in names) for w in means]
    if not words:
        return advice.experiment is not None  # a setting, for which there is one advice
    return any(w in advice.title for w in words)
