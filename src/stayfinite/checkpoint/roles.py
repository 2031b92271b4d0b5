"""What part of a training a tensor is, from where it lies in the checkpoint and from its name."""

from __future__ import annotations

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
    "data": "data",
    "other": "other",
}

_EMA = re.compile(
    r"(^|[._\-/ ])(ema|swa|shadow|averaged)([._\-/ ]|$)|ema_|_ema|average_model|n_averaged"
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
    """The part of a training that a file's name announces, "" when it announces none.

    >>> file_hint("optimizer"), file_hint("model-00001-of-00002")
    ('optimizer', '')
    """
    name = stem.lower()
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


def role_of(path: tuple[str, ...], hint: str = "") -> str:
    """The role of the tensor at `path`.

    >>> role_of(("state_dict", "bn1.running_var"))
    'batchnorm'
    >>> role_of(("optimizer", "state", "0", "exp_avg"))
    'optimizer'
    >>> role_of(("ema", "fc.weight")), role_of(("model", "fc.weight"))
    ('ema', 'weights')
    """
    parts = [p.lower() for p in path]
    where = parts[:-1]
    leaf = parts[-1] if parts else ""
    last = leaf.rpartition(".")[2]
    if hint == "data":
        return "data"
    if last in ("running_mean", "running_var", "num_batches_tracked"):
        return "batchnorm"
    tops = where[:2] or [leaf]
    if hint == "rng" or any(_RNG.search(p) for p in (*where, leaf)):
        return "rng"
    if hint == "scheduler" or any(_SCHEDULER.search(p) for p in tops):
        return "scheduler"
    if hint == "scaler" or any(_SCALER.search(p) for p in tops):
        return "scaler"
    if any(_OPTIMIZER.search(p) for p in tops) or hint == "optimizer":
        return "ema" if _EMA.search(leaf) else _optimizer_part(parts)
    if "state" in where and last in _MOMENTS:
        return "optimizer"
    if hint == "ema" or any(_EMA.search(p) for p in parts):
        return "ema"
    if any(_CALLBACK.match(p) for p in where[:2]):
        return "callback"
    if "_buffers" in where or _BUFFER.search(leaf):
        return "buffer"
    return "weights"


def _optimizer_part(parts: list[str]) -> str:
    if any("fp32" in p and ("group" in p or "flat" in p) for p in parts):
        return "weights"  # the master weights that ZeRO keeps with its optimizer
    return "optimizer"


def is_mask_like(name: str) -> bool:
    """Whether Inf is what this tensor is made for: masks, observers' ranges, best-so-far scores."""
    return bool(_MASK.search(name.lower()))
