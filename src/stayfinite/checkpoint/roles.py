"""Derives a tensor's role (weights, optimizer, buffer, …) from its place and name in the checkpoint."""

from __future__ import annotations

import functools
import re

__all__ = ["ROLE_TITLES", "file_hint", "is_mask_like", "role_of"]

ROLE_TITLES = {
    "weights": "weights",
    "buffer": "buffer",
    "batchnorm": "BatchNorm statistics",
    "optimizer": "optimizer moments",
    "ema": "EMA weights",
    "scheduler": "scheduler",
    "scaler": "loss scaler",
    "quantizer": "quantizer",
    "callback": "callback state",
    "rng": "random state",
    "metric": "metric",
    "data": "data",
    "other": "other",
}

_EMA = re.compile(
    r"(^|[._\-/ ])(ema|swa|shadow|averaged)([._\-/ ]|$)|ema_|_ema|average_model|n_averaged"
)
_MODEL = re.compile(
    r"model|state_dict|module|(^|_)net|generator|discriminator|coder|weights|params|param_groups"
)
"""Everything below these keys is part of a model, or of its optimizer, whatever its name."""
_METRIC = re.compile(
    r"(^|[._\-/ ])(train|val|valid|test|running|smoothed|avg|mean|ema|best)?_?"
    r"(loss|losses|acc|accuracy|metric|metrics|score|reward|grad_norm|gnorm|perplexity|ppl|lr|speed|"
    r"throughput|step_time|tokens_per_sec)(_?(ema|avg|mean|average|smoothed))?$"
)
_DATA = re.compile(
    r"^([a-z0-9]+_)*(embeddings?|embeds?|features?|feats?|labels?|targets?|ids?|idx|indices|index|samples?|"
    r"images?|inputs?|tokens?|data|dataset|x|y|xs|ys|paths|captions|texts?|scores|latents?|codes?)"
    r"(_(train|val|valid|validation|test|all|cache|\d+))*$"
)
_MOMENTS = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "square_avg",
        "acc_delta",
        "exp_inf",
        "ax",
        "eta",
        "mu",
        "prev",
        "exp_avg_sq_row",
        "exp_avg_sq_col",
        "sum",
        "momentum",
        "grad_avg",
        "step",
        "exp_avg_diff",
    }
)
_OPTIMIZER = re.compile(
    r"^(optim|optimizer|optimizers|opt)([._\-/\d]|$|_state)|optimizer_state|optim_state"
)
_SCHEDULER = re.compile(r"sched")
_SCALER = re.compile(r"(^|[._/])(grad_?scaler|scaler|loss_?scaler|amp)([._/]|$)|scaler_state")
_RNG = re.compile(r"rng|random_state")
_CALLBACK = re.compile(r"^(callbacks|loops|metrics?|hparams|hyper_parameters|args|config)$")
_BUFFER = re.compile(
    r"(^|\.)(inv_freq|position_ids|token_type_ids|relative_position_index|num_batches_tracked|"
    r"attn_mask|mask|causal_mask|masked_bias|min_vals?|max_vals?|cos_cached|sin_cached|freqs_cis|pe|"
    r"original_inv_freq|eps|fake_quant_enabled|observer_enabled|mel_basis|window|filters?|fb)$"
)
_MASK = re.compile(
    r"mask|(^|[._])(min|max)_vals?$|attn\.bias$|(^|[._])best(_|$)|best_model_score|kth"
)


def file_hint(stem: str) -> str:
    """The part of a training in a file's name, "" if there is none.

    >>> file_hint("optimizer"), file_hint("model-00001-of-00002"), file_hint("embeddings_train")
    ('optimizer', '', 'data')
    """
    name = stem.lower()
    if name.startswith(("embeddings", "features", "dataset")):
        return "data"
    if name.startswith(("optim", "opt.")) or "optim_states" in name:
        return "optimizer"
    for part, hint in (
        ("sched", "scheduler"),
        ("scaler", "scaler"),
        ("rng_state", "rng"),
        ("ema", "ema"),
    ):
        if name.startswith(part) or (part == "ema" and _EMA.search(name)):
            return hint
    return ""


_NUMBERS = re.compile(r"(?<!\d)(?<!fp)(?<!bf)\d+")


def is_data_file(names: list[str]) -> bool:
    """Whether tensors of these names are a cache of data, not the state of a training.

    >>> is_data_file(["embeddings", "labels"]), is_data_file(["embeddings.weight", "labels"])
    (True, False)
    """
    return bool(names) and all(_DATA.match(name.lower()) for name in names)


def role_of(path: tuple[str, ...], hint: str = "") -> str:
    """The role of the tensor at `path`.

    >>> role_of(("state_dict", "bn1.running_var"))
    'batchnorm'
    >>> role_of(("optimizer", "state", "0", "exp_avg"))
    'optimizer'
    >>> role_of(("ema", "fc.weight")), role_of(("model", "fc.weight")), role_of(("loss_ema",))
    ('ema', 'weights', 'metric')
    """
    return _role_of(_NUMBERS.sub("0", "\x1f".join(path)), hint)


@functools.lru_cache(maxsize=4096)
def _role_of(joined: str, hint: str) -> str:
    """The role of all tensors whose paths differ only in their numbers."""
    path = tuple(joined.split("\x1f")) if joined else ()
    leaf = path[-1].lower() if path else ""
    last = leaf.rpartition(".")[2]
    if hint == "data":
        return "data"
    if last in ("running_mean", "running_var", "num_batches_tracked"):
        return "batchnorm"
    where = path[:-1]
    if len(path) <= 2 and _METRIC.search(leaf) and not any(_MODEL.search(p.lower()) for p in where):
        return "metric"
    above = _role_above(tuple(where[:2]) or (leaf,), hint)
    if above == "optimizer" and (_EMA.search(leaf) or "fp32" in "".join(where)):
        return "ema" if _EMA.search(leaf) else _optimizer_part([p.lower() for p in path])
    if above:
        return above
    if "state" in where and last in _MOMENTS:
        return "optimizer"
    if hint == "ema" or _EMA.search(leaf):
        return "ema"
    if "rng" in leaf or "random_state" in leaf:
        return "rng"
    return "buffer" if "_buffers" in where or _BUFFER.search(leaf) else "weights"


def _role_above(where: tuple[str, ...], hint: str) -> str:
    """The role of everything below the outermost two keys, "" if they do not determine one."""
    tops = [p.lower() for p in where]
    if hint == "rng" or any(_RNG.search(p) for p in tops):
        return "rng"
    for role, pattern in (
        ("scheduler", _SCHEDULER),
        ("scaler", _SCALER),
        ("optimizer", _OPTIMIZER),
    ):
        if hint == role or any(pattern.search(p) for p in tops):
            return role
    if any(_EMA.search(p) for p in tops):
        return "ema"
    return "callback" if any(_CALLBACK.match(p) for p in tops) else ""


def _optimizer_part(parts: list[str]) -> str:
    if any("fp32" in p and ("group" in p or "flat" in p) for p in parts):
        return "weights"  # the master weights that ZeRO keeps with its optimizer
    return "optimizer"


def is_mask_like(name: str) -> bool:
    """Whether Inf is intended in this tensor: masks, observers' ranges, best scores."""
    return bool(_MASK.search(name.lower()))
