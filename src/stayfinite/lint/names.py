"""What names suggest: a module, a mask, an epsilon, a loss."""

from __future__ import annotations

import re
from functools import lru_cache

from ..parsing import dotted
from . import values as v

__all__ = ["dotted", "facts_of_name", "is_epsilon", "is_evaluation", "is_loss", "says_safe"]

_EPSILON = re.compile(
    r"(^|_)(eps|epsilon|tiny|smooth|smoothing|delta|floor|jitter|alpha|offset|reg|damping|min_\w+)"
    r"\d*(_|$)|(?<!st)eps$|tol(erance)?$",
    re.IGNORECASE,
)
_STRICT = re.compile(r"(^|_)(eps|epsilon|tiny)\d*$", re.I)
_SAFE = re.compile(r"safe|clamped|clipped|nonzero|non_zero|stable|smoothed|positive|_eps", re.I)
_MASK = re.compile(
    r"(^|_)(mask|masks|is_\w+|has_\w+|valid|keep|padding|selected|adj|adjacency)(_|$)|mask$", re.I
)
_LOGVAR = re.compile(r"log_?(var|std|sigma|variance|scale)|logit_scale", re.I)
_LOGPROB = re.compile(r"log_?p(i|rob|robs)?(s)?(_|$)|log_?prob|logp\b|log_likelihood", re.I)
_LOGITS = re.compile(r"^(logits?|scores?|energy|energies|pred|preds|prediction|predictions)$", re.I)
_PROB = re.compile(r"(^|_)(prob|probs|probability|probabilities)(_|$)", re.I)
_COUNT = re.compile(r"^(num|count|n)_\w+|^\w+_(count|counts)$|^(counts|deg|degree|degrees)$", re.I)
_EVALUATION = re.compile(
    r"eval|metric|accuracy|predict|infer|generate|decode|plot|visuali|export|convert|postproc|"
    r"post_proc|preproc|benchmark|statistic|(^|_)test|(^|_)draw|(^|_)show|calibrat|quantiz|profil|"
    r"(^|_)sample|extract|merge|prune|load|save|summary|beam|init",
    re.I,
)
_LOSS = re.compile(r"loss|criterion|penalty|objective|elbo|divergence|(^|_)nll|kl_?", re.I)


@lru_cache(maxsize=4096)
def is_epsilon(name: str) -> bool:
    """Whether a name is usually that of a small positive number.

    >>> is_epsilon("self.eps"), is_epsilon("smooth_nr"), is_epsilon("steps")
    (True, True, False)
    """
    return bool(_EPSILON.search(name.rpartition(".")[2]))


@lru_cache(maxsize=4096)
def says_safe(name: str) -> bool:
    """Whether a name suggests that its value was made safe."""
    return bool(_SAFE.search(name.rpartition(".")[2]))


@lru_cache(maxsize=4096)
def is_evaluation(name: str) -> bool:
    """Whether a function of this name is rarely differentiated."""
    return bool(_EVALUATION.search(name)) and not _LOSS.search(name)


@lru_cache(maxsize=4096)
def is_loss(name: str) -> bool:
    """Whether a name suggests something that is minimized.

    >>> is_loss("dice_loss"), is_loss("forward")
    (True, False)
    """
    return bool(_LOSS.search(name))


_BY_NAME = (
    (_LOGVAR, v.LOGVAR | v.NAMED),
    (_LOGPROB, v.LOGPROB | v.NAMED),
    (_PROB, v.PROB | v.NONNEG | v.NAMED),
    (_MASK, v.MASK | v.NAMED),
    (_LOGITS, v.UNBOUNDED | v.NAMED),
    (_COUNT, v.COUNT | v.NAMED),
)


@lru_cache(maxsize=8192)
def facts_of_name(name: str) -> int:
    """The facts that a name alone suggests."""
    last = name.rpartition(".")[2]
    if says_safe(last):
        return v.SAFE
    if _STRICT.search(last):
        return v.PY | v.NAMED | v.SAFE
    for pattern, facts in _BY_NAME:
        if pattern.search(last):
            return facts
    return 0
