"""The init group: are the initial weights sound?"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ...numerics.health import is_finite, stats
from ..layers import Role, few, is_norm, plain_values, roles
from ..probes import Checks, Subject
from ..records import Finding, failed, passed, skipped, warned
from .owners import ownership

__all__ = ["init"]

GROUP = "init"

MOST_GAIN = 10.0
"""std * sqrt(fan_in) of a weight matrix. Glorot's is 1, He's 1.41, torch's own Linear 0.58."""
HOPELESS_GAIN = 1000.0
LEAST_GAIN = 1e-3
"""Policy heads are initialized with a gain of 0.01 on purpose."""
MOST_EMBEDDING_STD = 10.0
"""torch's own is 1."""
MOST_NORM = 100.0
MOST_BIAS = 100.0
MOST_PLAIN = 1e3
TINY = 1e-25
"""No initializer gives more than a few values so small; leftover bits in memory do."""
HUGE = 1e8


def init(subject: Subject) -> Checks:
    """Finite, sane in scale, written at all, and trained by an optimizer."""
    found: list[Finding] = []
    trained = list(roles(subject))
    if not trained and not subject.roots:
        return [skipped(GROUP, "init/parameters", "no module with parameters was seen")]
    found += _finite(subject)
    found += _unwritten(subject, trained)
    bad = {f.subject for f in found if f.is_problem}
    sound = [r for r in trained if r.name not in bad]
    found += _scale(sound)
    found += _units(sound)
    found += _norm_buffers(subject)
    found += yield from ownership(subject)
    return found


def _finite(subject: Subject) -> list[Finding]:
    found, count = [], 0
    for name, tensor, is_parameter in _state(subject):
        count += 1
        if tensor.device.type == "meta":
            action = "give it values before training: to_empty() and then reset_parameters()"
            found.append(
                failed(GROUP, "init/finite", "on the meta device", action, subject=name, weight=9)
            )
            continue
        if is_finite(tensor):
            continue
        s = stats(tensor)
        if not is_parameter and not s.num_nan:
            continue  # a mask of -inf and the ranges of observers are infinite by design
        kinds = f"{s.num_nan} NaN, {s.num_posinf + s.num_neginf} Inf of {s.num_elements}"
        action = "initialize it, or load a checkpoint that `stayfinite scan` calls clean"
        why = "the first forward already spreads it"
        found.append(failed(GROUP, "init/finite", kinds, action, subject=name, why=why, weight=10))
    return few(found) or [passed(GROUP, "init/finite", f"{count} parameters and buffers")]


def _state(subject: Subject) -> Iterator[tuple[str, Tensor, bool]]:
    for name, p in subject.parameters():
        yield name, p, True
    for path, module in subject.modules():
        for name, b in module.named_buffers(path, recurse=False):
            yield name, b, False


def _unwritten(subject: Subject, trained: list[Role]) -> list[Finding]:
    """Parameters made by torch.empty and never filled."""
    check = "init/unwritten"
    action = "fill it: nn.init.xavier_uniform_(w), or torch.zeros / torch.randn instead of empty"
    names = _by_rebuilding(subject)
    how = (
        "rebuilt on marked memory"
        if names is not None
        else "no parameter looks like unwritten memory"
    )
    found = [
        failed(GROUP, check, "still holds the mark after a rebuild", action, subject=n, weight=10)
        for n in sorted(names or ())
    ]
    for role in trained:
        values = plain_values(role.parameter)
        if values is None or role.name in (names or ()) or not is_finite(values):
            continue
        seen = _leftover(values, role.parameter.dtype)
        if seen:
            found.append(failed(GROUP, check, seen, action, subject=role.name, weight=10))
    return few(found) or [passed(GROUP, check, how)]


def _by_rebuilding(subject: Subject) -> set[str] | None:
    """What is NaN when the models are built on memory that torch fills with NaN; None: unknown."""
    if subject.rebuild is None:
        return None
    with _marked_memory():
        try:
            models = subject.rebuild()
        except Exception:
            return None  # the target builds only once; the look of the values must do
    fresh = Subject(models=models)
    now = {n: is_finite(p) for n, p in subject.parameters() if p.device.type != "meta"}
    return {n for n, p in fresh.parameters() if now.get(n) and not is_lazy(p) and not is_finite(p)}


@contextlib.contextmanager
def _marked_memory() -> Iterator[None]:
    rng = torch.get_rng_state()
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # torch's own function would import its compiler first, which takes seconds.
            torch._C._set_deterministic_algorithms(True, warn_only=True)
            settings.fill_uninitialized_memory = True
            yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warn_only)
        settings.fill_uninitialized_memory = fill
        torch.set_rng_state(rng)


def _leftover(values: Tensor, dtype: torch.dtype) -> str:
    """What in these values looks like somebody else's bits; "" for nothing."""
    if dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return ""
    size = values.abs()
    tiny = int(((size > 0) & (size < TINY)).sum())
    huge = int((size > HUGE).sum())
    if tiny > max(1, values.numel() // 100):
        return f"{tiny} of {values.numel()} values are not zero but below {TINY:.0e}"
    if 0 < huge < values.numel() // 2 and float(size.median()) < 1:
        return f"{huge} of {values.numel()} values are above {HUGE:.0e}, half are below 1"
    return ""


def _scale(trained: list[Role]) -> list[Finding]:
    found: list[Finding] = []
    gains = []
    for role in trained:
        values = plain_values(role.parameter)
        if values is None or values.numel() < 2 or not is_finite(values):
            continue
        if role.kind == "matrix":
            gains.append(float(values.std()) * role.fan_in**0.5)
        problem = _SCALES[role.kind](role, values)
        if problem:
            found.append(problem)
    if found:
        return few(sorted(found, key=lambda f: -f.weight))
    if not gains:
        return [passed(GROUP, "init/scale", "no weight matrix; the rest is in range")]
    seen = f"std * sqrt(fan_in) from {min(gains):.2g} to {max(gains):.2g}"
    return [passed(GROUP, "init/scale", seen)]


def _matrix(role: Role, values: Tensor) -> Finding | None:
    std = float(values.std())
    gain = std * role.fan_in**0.5
    mean = float(values.mean().abs()) * role.fan_in**0.5
    seen = f"std {std:.3g} at fan-in {role.fan_in}: a gain of {max(gain, mean):.3g}"
    if mean > max(gain, MOST_GAIN):
        seen = f"mean {float(values.mean()):.3g} at fan-in {role.fan_in}, far from zero"
    action = f"initialize it with std {(1 / role.fan_in) ** 0.5:.3g} (1 / sqrt(fan-in)) or so"
    why = "Glorot 2010 has a gain of 1, He 2015 of 1.41; the scale grows by it at every layer"
    more = {"subject": role.name, "why": why, "data": {"gain": gain, "fan_in": role.fan_in}}
    if max(gain, mean) > HOPELESS_GAIN:
        return failed(GROUP, "init/scale", seen, action, weight=6, **more)
    if max(gain, mean) > MOST_GAIN:
        return warned(GROUP, "init/scale", seen, action, weight=4, **more)
    if 0 < gain < LEAST_GAIN and float(values.abs().max()) > 0:
        return warned(GROUP, "init/scale", seen, action, weight=2, **more)
    return None


def _limit(most: float, what: str, action: str) -> Callable[[Role, Tensor], Finding | None]:
    def judge(role: Role, values: Tensor) -> Finding | None:
        largest = float(values.abs().max())
        if largest <= most:
            return None
        seen = f"{what} of {largest:.3g}"
        return warned(GROUP, "init/scale", seen, action, subject=role.name, weight=3)

    return judge


def _embedding(role: Role, values: Tensor) -> Finding | None:
    std = float(values.std())
    if std <= MOST_EMBEDDING_STD:
        return None
    action = "initialize it with a std of 1 or less (language models use 0.02)"
    return warned(
        GROUP, "init/scale", f"embedding with std {std:.3g}", action, subject=role.name, weight=3
    )


_SCALES: dict[str, Callable[[Role, Tensor], Finding | None]] = {
    "matrix": _matrix,
    "embedding": _embedding,
    "norm": _limit(MOST_NORM, "a normalization's scale or shift", "start scales at 1, shifts at 0"),
    "bias": _limit(MOST_BIAS, "a bias", "start biases at 0"),
    "plain": _limit(
        MOST_PLAIN, "a value", "initialize it at the scale of the activations, about 1"
    ),
}


def _units(trained: list[Role]) -> list[Finding]:
    """Units that can never differ from their neighbors, and units without any input."""
    found = []
    for role in trained:
        values = plain_values(role.parameter)
        if role.kind != "matrix" or values is None or values.shape[0] < 2:
            continue
        rows = values.flatten(1)
        if rows.shape[1] < 2 or not is_finite(rows) or not bool(rows.any()):
            continue  # a matrix of zeros is a gate: the gradients show whether it opens
        if bool((rows == rows[0]).all()):
            seen = f"all {len(rows)} units start equal ({float(rows[0, 0]):.3g})"
            action = "initialize it at random: equal units get equal gradients and stay equal"
            found.append(warned(GROUP, "init/units", seen, action, subject=role.name, weight=5))
            continue
        dead = (~rows.any(1)).nonzero().flatten().tolist()
        if dead:
            seen = f"{len(dead)} of {len(rows)} units have no weight at all: {dead[:5]}"
            action = "initialize these rows too, or remove the units"
            found.append(warned(GROUP, "init/units", seen, action, subject=role.name, weight=3))
    return few(found) or [passed(GROUP, "init/units", "no dead and no equal units")]


def _norm_buffers(subject: Subject) -> list[Finding]:
    found = []
    norms = [(path, m) for path, m in subject.modules() if is_norm(m)]
    for path, module in norms:
        variance: Any = getattr(module, "running_var", None)
        values = plain_values(variance) if isinstance(variance, Tensor) else None
        if values is None or not is_finite(values) or float(values.min()) > 0:
            continue
        low = float(values.min())
        found.append(
            (failed if low < 0 else warned)(
                GROUP,
                "init/running-variance",
                f"running variance of {low:.3g} in {int((values <= 0).sum())} channels",
                "start it at 1: module.reset_running_stats()",
                subject=f"{path}.running_var" if path else "running_var",
                weight=5,
            )
        )
    if not found and any(isinstance(getattr(m, "running_var", None), Tensor) for _, m in norms):
        return [passed(GROUP, "init/running-variance", "positive everywhere")]
    return few(found)
