"""The config group: checks the settings in use, those in the config file, and their differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torch.optim.lr_scheduler import LRScheduler

from ..probes import Checks, Subject
from ..records import Finding, failed, passed, skipped, warned
from .gather import Reading, held, in_file, tags_of
from .rules import RULES, broken, expected_range
from .schedule import judge_schedule, num_batches

__all__ = ["config", "cost_of_failure"]

_GROUP = "config"
_COMPARED = ("lr", "weight_decay", "momentum", "beta1", "beta2", "adam_eps", "clip", "batch_size")
_CLIP_RATIO = 1000.0
_LARGE_SHARE = 0.5
"""The share of the run between two saves from which on a failure costs most of it."""
_CHECKS = {rule.quantity: rule.name for rule in RULES}


def config(subject: Subject) -> Checks:
    """Check every setting against the rules, and the config file against the settings in use."""
    yield from ()
    mine = list(held(subject))
    written = list(in_file(subject.config or {}, subject.config_path))
    if not mine and not written:
        return [skipped(_GROUP, "config/figures", "neither a config file nor an optimizer")]
    found = _by_rules([*mine, *written], tags_of(subject))
    if subject.config is not None:
        found += _differences(mine, written)
        found += _warmup(written)
        found += cost_of_failure(written)
    found += [*_scaler(subject), *_clip(subject), *_schedules(subject)]
    return found


def _by_rules(readings: Iterable[Reading], tags: frozenset[str]) -> list[Finding]:
    problems: list[Finding] = []
    fine: dict[str, list[Reading]] = {}
    for reading in readings:
        rule = broken(reading.quantity, reading.value, tags)
        if rule is None:
            fine.setdefault(_CHECKS.get(reading.quantity, ""), []).append(reading)
            continue
        make = failed if rule.status == "fail" else warned
        problems.append(
            make(
                _GROUP,
                f"config/{rule.name}",
                f"{reading.value:g} (expected {expected_range(rule)})",
                rule.action,
                subject=reading.subject,
                why=rule.source,
                weight=rule.weight,
                data={"quantity": reading.quantity, "value": reading.value},
            )
        )
    bad = {f.check for f in problems}
    passed_rules = [
        passed(_GROUP, f"config/{name}", _listed(readings))
        for name, readings in fine.items()
        if name and f"config/{name}" not in bad
    ]
    return _grouped(problems) + passed_rules


def _grouped(problems: list[Finding]) -> list[Finding]:
    """Merge the same problem in many layers into one finding that names them."""
    kept: dict[tuple[str, str, str], list[Finding]] = {}
    for f in problems:
        kept.setdefault((f.check, f.status, f.value), []).append(f)
    found = []
    for same in kept.values():
        first = same[0]
        if len(same) > 1:
            names = [f.subject for f in same]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            first = Finding(
                **{**vars(first), "subject": ", ".join(names[:3]) + more,
                   "data": {**first.data, "subjects": names}}
            )  # fmt: skip
        found.append(first)
    return found


def _listed(readings: list[Reading]) -> str:
    shown = [f"{r.subject} {r.value:g}" for r in readings[:3]]
    more = f" and {len(readings) - 3} more" if len(readings) > 3 else ""
    return ", ".join(shown) + more


def _differences(mine: list[Reading], written: list[Reading]) -> list[Finding]:
    """A setting in the file that is not used."""
    found: list[Finding] = []
    for quantity in _COMPARED:
        used = [r for r in mine if r.quantity == quantity]
        in_file = [r for r in written if r.quantity == quantity]
        if not used or not in_file or any(_agrees(a, b) for a in in_file for b in used):
            continue
        found.append(
            warned(
                _GROUP,
                "config/differs",
                f"{in_file[0].value:g} in the file; {used[0].subject} is {used[0].value:g}",
                "find out which one is meant: an argument, a default or a restored checkpoint may "
                "override the file",
                subject=in_file[0].subject,
                weight=7 if quantity == "lr" else 3,
                data={"quantity": quantity, "file": in_file[0].value, "used": used[0].value},
            )
        )
    if found or not any(r.quantity in _COMPARED for r in written) or not mine:
        return found
    return [passed(_GROUP, "config/differs", "the file says what the training holds")]


def _agrees(in_file: Reading, used: Reading) -> bool:
    if math.isclose(in_file.value, used.value, rel_tol=1e-6):
        return True
    # The file may state the batch of all devices, or of all accumulated steps, together.
    is_multiple = used.value and (in_file.value / used.value) == int(in_file.value / used.value)
    return in_file.quantity == "batch_size" and bool(is_multiple) and in_file.value > used.value


def _warmup(written: list[Reading]) -> list[Finding]:
    warm = next((r for r in written if r.quantity == "warmup_steps"), None)
    total = next((r for r in written if r.quantity == "total_steps"), None)
    if warm is None or total is None or warm.value < total.value:
        return []
    return [
        warned(
            _GROUP,
            "config/warmup",
            f"{warm.value:g} steps of warmup in a run of {total.value:g}",
            "warm up over 1 to 10 % of the steps",
            subject=warm.subject,
            weight=4,
            why="the learning rate never gets to its peak, nor to its decay",
        )
    ]


def _scaler(subject: Subject) -> list[Finding]:
    has_scaler = any(s.is_enabled() for s in subject.scalers)
    if subject.autocast_dtype == "float16" and not has_scaler:
        return [
            warned(
                _GROUP,
                "config/grad-scaler",
                "float16 autocast without a GradScaler",
                "scaler = torch.amp.GradScaler(); scaler.scale(loss).backward(); scaler.step(…); "
                "scaler.update()",
                subject="GradScaler",
                weight=7,
                why="gradients below 6e-8 become zero (Micikevicius et al. 2018)",
            )
        ]
    if subject.autocast_dtype == "bfloat16" and has_scaler:
        return [
            warned(
                _GROUP,
                "config/grad-scaler",
                "a GradScaler with bfloat16 autocast",
                "leave the scaler out, or GradScaler(enabled=False)",
                subject="GradScaler",
                why="bfloat16 has the range of float32: nothing underflows that scaling would save",
            )
        ]
    if subject.autocast_dtype is None:
        return []
    return [passed(_GROUP, "config/grad-scaler", f"fits {subject.autocast_dtype}")]


def _clip(subject: Subject) -> list[Finding]:
    """A limit that every step exceeds by far turns the training into steps of fixed length."""
    norms = [s.grad_norm for s in subject.steps if s.grad_norm is not None]
    if subject.clip_norm is None or not norms or subject.clip_norm <= 0:
        return []
    smallest = min(norms)
    if not smallest > _CLIP_RATIO * subject.clip_norm:
        return []
    return [
        warned(
            _GROUP,
            "config/clip-reached",
            f"gradient norms from {smallest:.3g} up, clipped to {subject.clip_norm:g}",
            "find out why they are so large (see forward and init) before clipping them away",
            subject="clip_grad_norm_",
            weight=5,
        )
    ]


def _schedules(subject: Subject) -> list[Finding]:
    """Simulate each schedule: does it ever return an invalid rate?"""
    return [
        judge_schedule(scheduler, num_batches(subject))
        for scheduler in subject.schedulers
        if isinstance(scheduler, LRScheduler)
    ]


def cost_of_failure(readings: Iterable[Reading]) -> Iterator[Finding]:
    """How many steps are lost with the last checkpoint, and unseen since the last evaluation.

    >>> found = cost_of_failure([Reading("save_every", 40, "save_every"), Reading("total_steps", 160, "")])
    >>> [f.value for f in found]
    ['a failure costs up to 40 steps: 25 % of the run']
    """
    by_quantity: dict[str, list[Reading]] = {}
    for reading in readings:
        by_quantity.setdefault(reading.quantity, []).append(reading)
    total = max((r.value for r in by_quantity.get("total_steps", [])), default=0.0)
    for quantity, words in (
        ("save_every", "a failure costs up to {n:,.0f} steps"),
        ("eval_every", "a model that gets worse is seen up to {n:,.0f} steps late"),
    ):
        for reading in by_quantity.get(quantity, []):
            yield _judged_interval(quantity, reading, words.format(n=reading.value), total)


def _judged_interval(quantity: str, reading: Reading, words: str, total: float) -> Finding:
    check = "config/save-every" if quantity == "save_every" else "config/eval-every"
    share = reading.value / total if total > 0 else 0.0
    if total > 0:
        words += f": {min(share, 1):.0%} of the run".replace("%", " %")
    data = {"steps": reading.value, "total": total}
    if reading.value > 0 and share < _LARGE_SHARE:
        return passed(_GROUP, check, words, subject=reading.subject, data=data)
    if reading.value <= 0:
        words = f"{reading.value:g} is no interval"
    action = (
        f"set {max(int(total * 0.1), 1) if total else 1000:,}, or every 1,000 steps of a long run"
    )
    return warned(_GROUP, check, words, action, subject=reading.subject, data=data)
