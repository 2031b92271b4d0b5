"""The edges group: which plausible batch breaks the training, where, why, and how likely it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from ...foresee.search.candidates import LEVELS, Candidate
from ...foresee.search.extents import firm_boxes, is_flat
from ...foresee.search.families import candidates
from ...foresee.search.laws import Law, laws
from ...foresee.search.parts import Part, parts_of
from ...foresee.search.plausible import between, distance
from ...runtime.rows import num_rows
from ..layers import ask, has_scaler
from ..probes import Checks, Probe, Seen, Subject
from ..records import Finding, passed, skipped
from .ahead import FEWEST, Ahead, affordable, run_on
from .data import num_last, own_batches
from .draws import Draw, draws, more_draws, unwritten_memory
from .growth import judge_growth
from .predict import Prediction, capsule_path, discard, finding_of, new_id

__all__ = ["edges"]

GROUP = "edges"
SEARCH_S = 1.0
SEARCH_STEPS = 12
"""The search ends after this many seconds, or this many steps' time where that is more."""
AHEAD_S = 0.4
AHEAD_STEPS = 40
LONG_S = 0.7
LONG_STEPS = 1500
DRIFTS = (1.0, 3.0, 10.0)
"""This many times further than the longer run has gone."""
_BUDGET_SHARE = 0.3
_MOST_TRACES = 24
_HALVINGS = 4
_DRAWS_SHARE = 0.25
_FEWEST_DRAWS = 4
_SAME_BATCH = ("memory", "random", "draw", "zero-grad", "dead", "drift")
_REGROUPED = ("one-class", "skewed", "absent", "one-sided", "unlike")
"""Nothing of these is made up: real samples of several batches in one."""
_SHRINKING = ("outlier", "outlier-value", "outlier-batch")
_REMEDIES = {
    "long": "bound what grows with the length: normalize the state, or cut sequences to a fixed length",
    "size": "leave so small a batch out (drop_last=True), or make this line safe for it",
    "drift": "lower the learning rate, add weight decay, or bound what goes into this line",
}
"""By family, where no rule knows a better one."""


def edges(subject: Subject) -> Checks:
    """Try the training's own batches, then candidates."""
    if not subject.batches:
        return [skipped(GROUP, "edges/any", "no batch was seen")]
    plain = yield from ask(
        subject, Probe(batch=subject.batches[0], name="the batch as it is", note_half=True)
    )
    if plain.error is not None or not plain.is_finite:
        return [skipped(GROUP, "edges/any", "the training's own first batch breaks: see forward")]
    batches = own_batches(subject)
    # A loop of few steps is started again and again: what one start has marked is gone in the next.
    is_long = subject.longest_run is None
    num_steps = min(AHEAD_STEPS, len(batches), subject.longest_run or AHEAD_STEPS)
    ahead = yield from run_on(subject, batches, num_steps, AHEAD_S, mark=is_long)
    search = Search(
        subject, batches, is_later=ahead.is_marked, is_half=plain.is_half, is_random=plain.is_random
    )
    search.add(ahead.broke)
    yield from search.run(_budget(subject, plain.seconds))
    if ahead.is_marked and _leads_further(ahead):
        ahead = yield from run_on(subject, batches, LONG_STEPS, LONG_S, mark=True)
        search.add(ahead.broke)
        if ahead.is_marked:
            yield from search.run(_budget(subject, plain.seconds) / 2, is_again=True)
    if ahead.is_marked and len(ahead.steps) > FEWEST:
        yield from search.drift(len(ahead.steps))  # so few steps show no way on which to go on
    return [*search.findings(ahead), *judge_growth(subject, ahead)]


def _leads_further(ahead: Ahead) -> bool:
    """Whether the longer run comes to other weights: where a step takes long, both end at the same one."""
    return affordable(ahead.steps[1], LONG_S) > len(ahead.steps) if len(ahead.steps) > 1 else True


def _budget(subject: Subject, step_seconds: float) -> float:
    """Seconds for one round of the search."""
    if subject.budget_s is not None:
        return _BUDGET_SHARE * subject.budget_s
    return max(SEARCH_S, SEARCH_STEPS * step_seconds)


@dataclass
class Search:
    """Tries candidates, and records what broke."""

    subject: Subject
    batches: Sequence[Any]
    is_later: bool
    """Candidates meet the weights behind the first steps: what breaks only an untrained model is gone
    after a step."""
    is_half: bool = False
    """Something is computed in half precision."""
    is_random: bool = True
    """A step draws random numbers."""
    tried: Counter[str] = field(default_factory=Counter)
    raised: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """Families of which a batch broke the step, whatever became of it."""
    untold: Counter[str] = field(default_factory=Counter)
    """Batches that broke it at a place that is not known, by their family."""
    num_left: int = 0
    spent: float = 0.0
    num_traces: int = 0
    parts: list[Part] = field(default_factory=list)
    firm: list[Part] = field(default_factory=list)
    """Boxes that always have an extent."""
    laws: list[Law] = field(default_factory=list)
    """What held in every row that was seen."""
    drawn: set[float | None] = field(default_factory=set)
    """The losses of the same batch with other random numbers."""
    _found: dict[tuple[Any, ...], Prediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = parts_of(self.batches)
        self.firm = firm_boxes(self.parts, self.batches)
        self.laws = laws(self.parts, self.batches)

    def run(self, seconds: float, is_again: bool = False) -> Generator[Probe, Seen, None]:
        """Every candidate; again, on other weights, only those that may come."""
        end = self.spent + seconds
        wanted = candidates(
            self.batches, self.subject.can_change_rows, self.is_half,
            self.subject.vehicle != "build", _tables(self.subject), num_last(self.subject),
        )  # fmt: skip
        if is_again:
            wanted = [c for c in wanted if c.level != "far" and not (c.may_raise or c.is_wild)]
        for i, candidate in enumerate(wanted):
            if self.spent > end:
                self.num_left = max(self.num_left, len(wanted) - i)
                break
            try:
                batch = candidate.make()
            except (RuntimeError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError):
                continue  # this batch cannot be changed so
            if candidate.level != "certain" and self._is_strange(batch):
                candidate = replace(candidate, level="far")
            yield from self.try_one(candidate, batch)
        if not is_again:
            yield from self._draws(end + _DRAWS_SHARE * seconds)
            yield from self._more_draws(self.spent + _DRAWS_SHARE * seconds)

    def _is_strange(self, batch: Any) -> bool:
        """It breaks what has held in all that was seen."""
        is_any_flat = any(is_flat(box, batch) for box in self.firm)
        return is_any_flat or any(law.is_broken_by(batch) for law in self.laws)

    def drift(self, num_steps: int) -> Generator[Probe, Seen, None]:
        """Its own batches on weights that have gone on as they went so far.

        A training goes where its loss falls: where it no longer does, it has turned by then.
        """
        for i, batch in enumerate(self.batches[:2]):
            last = yield from self._loss_at(batch)
            for times in DRIFTS:
                what = f"batch {i} of its own, weights {times:g} times further on their way"
                why = f"where {num_steps} steps have led, gone on in a line: about step {num_steps * (1 + times):,.0f}"
                made = Candidate("drift", what, partial(_same, batch), "possible", why)
                loss = yield from self.try_one(made, batch, drift=times)
                if loss is None or not loss <= last:
                    break
                last = loss

    def _loss_at(self, batch: Any) -> Generator[Probe, Seen, float]:
        probe = Probe(batch=batch, name="the batch once more", is_later=True, weigh=False)
        seen = yield from ask(self.subject, probe)
        return seen.loss if seen.loss is not None and math.isfinite(seen.loss) else -math.inf

    def _draws(self, end: float) -> Generator[Probe, Seen, None]:
        fewest = _FEWEST_DRAWS if self.is_random else _FEWEST_DRAWS // 2
        for number, draw in enumerate(draws(self.batches, self.is_random)):
            if self.spent > end and number >= fewest:
                break
            yield from self.try_one(draw.candidate, draw.candidate.make(), draw)

    def _more_draws(self, end: float) -> Generator[Probe, Seen, None]:
        """As many seeds as time allows, where other seeds gave other losses and no draw has broken."""
        reported = {f"{GROUP}/draw", f"{GROUP}/random"}
        if len(self.drawn) < 2:
            return
        for draw in more_draws(self.batches):
            if self.spent > end or any(p.check in reported for p in self._found.values()):
                break
            yield from self.try_one(draw.candidate, draw.candidate.make(), draw)

    def try_one(
        self, candidate: Candidate, batch: Any, draw: Draw | None = None, drift: float = 0.0
    ) -> Generator[Probe, Seen, float | None]:
        """One batch; memory that nobody writes is full of NaN meanwhile. Its loss, where it is finite."""
        around = draw.around if draw is not None else unwritten_memory
        probe = Probe(
            batch=batch, name=candidate.what, apply=True, weigh=False,
            is_later=self.is_later and not (draw is not None and draw.is_first), around=around, drift=drift,
        )  # fmt: skip
        seen = yield from ask(self.subject, probe)
        self.spent += seen.seconds
        if draw is not None:
            if not draw.is_used(seen):
                return seen.loss
            candidate = draw.judged()
        if candidate.family == "draw":
            self.drawn.add(seen.loss)
        self.tried[candidate.family] += 1
        if seen.error is not None:
            self._note_error(candidate, seen)
            return None
        if seen.is_finite:
            return seen.loss
        self.broken.add(candidate.family)
        if self.num_traces >= _MOST_TRACES:
            self._leave_untold(candidate)
            return None
        self.num_traces += 1
        name = new_id()
        probe = replace(
            probe, name=f"{candidate.what}, traced", trace=True,
            scale=1.0 if has_scaler(self.subject) else None,
            save_to=capsule_path(self.subject, name),
        )  # fmt: skip
        if candidate.family in _SHRINKING and candidate.level != "far":
            probe.batch, share = yield from self._shrunk(probe, seen)
            if share < 1.0:
                candidate = replace(candidate, what=f"{candidate.what}, or {share:.0%} of that,")
        is_plain_first = draw is None or candidate.family == "memory"
        for inside in (None, unwritten_memory) if is_plain_first else (around,):
            traced = yield replace(probe, around=inside)
            self.spent += traced.seconds
            if not traced.is_finite and traced.error is None:
                if candidate.family == "memory" and inside is None:
                    candidate = _own_later(candidate)
                self.add(self._prediction(candidate, probe.batch, traced, name))
                break
        else:
            self._leave_untold(candidate)
        return None

    def _leave_untold(self, candidate: Candidate) -> None:
        if candidate.level != "far":
            self.untold[candidate.family] += 1

    def _shrunk(self, probe: Probe, broke: Seen) -> Generator[Probe, Seen, tuple[Any, float]]:
        """The smallest change of the real batch that still breaks it in this way, by halving, and its share."""
        real, far = self.batches[0], probe.batch
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = replace(probe, batch=between(real, far, middle), trace=False, save_to="")
            seen = yield replace(tried, name=f"{middle:.0%} of the way")
            self.spent += seen.seconds
            if seen.error is None and not seen.is_finite and _is_bad(seen) == _is_bad(broke):
                high = middle
            else:
                low = middle
        return between(real, far, high) if high < 1.0 else far, high

    def _note_error(self, candidate: Candidate, seen: Seen) -> None:
        if candidate.level == "certain":
            self.add(self._prediction(candidate, None, seen, ""))
        else:
            self.raised.setdefault(candidate.family, f"{candidate.what} raises {seen.error}")

    def _prediction(self, c: Candidate, batch: Any, seen: Seen, name: str) -> Prediction:
        why = c.why
        if c.family in _REGROUPED:
            why = "; ".join(w for w in ("real samples of several batches in one", c.why) if w)
        elif batch is not None and c.family not in _SAME_BATCH:
            far = distance(self.batches[0], batch, self.parts, num_rows(self.batches[0]))
            why = "; ".join(w for w in (far.words() if far else "", c.why) if w)
        return Prediction(
            group=GROUP,
            check=f"{GROUP}/{c.family}",
            what=c.what,
            level=c.level,
            why=why,
            seen=seen,
            batch=batch,
            probability=c.probability,
            remedy=_REMEDIES.get(c.family, ""),
            id=name,
        )

    def add(self, new: Prediction | None) -> None:
        """One failure per line: the most likely."""
        if new is None:
            return
        old = self._found.get(new.key)
        if old is None:
            self._found[new.key] = new
        elif LEVELS.index(new.level) < LEVELS.index(old.level):
            new.also = [old.what, *old.also]
            self._found[new.key] = new
            discard(self.subject, old)
        else:
            old.also.append(new.what)
            discard(self.subject, new)

    def findings(self, ahead: Ahead) -> list[Finding]:
        usual = self.batches
        if not self.subject.is_pedantic:
            for p in self._found.values():
                if p.level == "far":
                    discard(self.subject, p)
        found = [finding_of(self.subject, p, usual) for p in self._found.values()]
        is_shown = self.subject.is_pedantic
        far = [f for f in found if f.status == "pass"]
        shown = [f for f in found if f.status != "pass" or is_shown]
        broken = {f.check.partition("/")[2] for f in found}
        shown += [
            skipped(GROUP, f"edges/{family}", f"{_batches(number)} broke it, where is not known")
            for family, number in self.untold.items()
            if family not in broken
        ]
        shown += [
            passed(GROUP, f"edges/{family}", self._survived(family, number))
            for family, number in self.tried.items()
            if family not in broken | self.broken
        ]
        if ahead.broke is None and ahead.steps:
            text = f"{len(ahead.steps)} real steps, each on its own batch: finite"
            shown.append(passed(GROUP, "edges/ahead", text))
        if far:
            lines = ", ".join(dict.fromkeys(f.subject for f in far if f.subject))
            text = f"{lines or len(far)}: only unrealistic data breaks it (--pedantic shows how)"
            shown.append(passed(GROUP, "edges/far", text))
        if self.num_left:
            text = f"{self.num_left} more batches were not tried: raise --budget for those"
            shown.append(skipped(GROUP, "edges/budget", text))
        if not found and not self.tried:
            return [skipped(GROUP, "edges/any", "the batch holds no tensor that could be changed")]
        return shown

    def _survived(self, family: str, number: int) -> str:
        tried = f"{_batches(number)} tried"
        if family in self.raised:
            return f"{tried}; {self.raised[family]}"
        return f"{tried}: finite"


def _batches(number: int) -> str:
    return f"{number} batch{'es' if number != 1 else ''}"


def _own_later(memory: Candidate) -> Candidate:
    """No fault of the memory: its own batch breaks what the first steps have made."""
    what = "a batch of its own, on the weights behind the first steps"
    return replace(memory, family="ahead", what=what, why="these steps were taken, and it was seen")


def _same(batch: Any) -> Any:
    return batch


def _is_bad(seen: Seen) -> bool:
    """The loss itself is not finite."""
    return seen.loss is not None and not math.isfinite(seen.loss)


def _tables(subject: Subject) -> list[int]:
    """The sizes of the embedding tables."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return [m.num_embeddings for _, m in subject.modules() if isinstance(m, kinds)]
