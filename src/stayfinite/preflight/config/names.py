"""Maps config keys to quantities: many names, one meaning."""

from __future__ import annotations

import re

__all__ = ["number_of", "quantity_of"]

_NAMES: tuple[tuple[str, str], ...] = (
    (
        "lr",
        r"((?!min|end|final|warmup|eta)\w+_)?(lr|learning_rate|learningrate)(_max|_peak|_init)?",
    ),
    ("lr_multiplier", r"(\w+_)?lr_(mult|multiplier|factor)"),
    ("warmup_ratio", r"warmup_(ratio|fraction|pct|proportion)"),
    ("warmup_steps", r"(num_)?(lr_)?warmup(_steps|_iters|_iterations|_updates)?"),
    ("total_steps", r"(max|total|num_training|num|train)_(steps|iters|iterations)"),
    (
        "clip",
        r"(grad(ient)?_?clip(ping)?(_norm|_val|_value|_max_norm)?|clip_grad(ient)?(_norm)?|"
        r"max_(grad_)?norm|clip(_norm|_value)?)",
    ),
    ("epochs", r"(num_|max_|train_|n_)?epochs"),
    ("save_every", r"(save|checkpoint|ckpt)_(every|interval|freq|steps|every_n_steps)"),
    ("eval_every", r"(eval|val|validat(e|ion))_(every|interval|freq|steps|every_n_steps)"),
    ("loss_beta", r"(loss_|mi_)?beta"),
    ("beta1", r"(adam_)?beta_?1"),
    ("beta2", r"(adam_)?beta_?2"),
    ("adam_eps", r"(adamw?|optimizer|optim|opt)_eps(ilon)?"),
    ("sinkhorn_eps", r"(sinkhorn|ot)_(eps|epsilon|reg|regularization)"),
    ("norm_eps", r"((rms|layer|batch|group|instance)_?)?(norm|ln|bn)_eps(ilon)?"),
    ("focal_gamma", r"(focal_(loss_)?gamma|gamma_focal)"),
    ("label_smoothing", r"(label_)?smoothing"),
    ("temperature", r"(\w+_)?(temperatures?|temps?)"),
    ("sinkhorn_eps", r"(sinkhorn|mhc|routing)_tau"),
    (
        "loss_weight",
        r"\w+_loss_(weight|coef|coeff|coefficient)|"
        r"(kl|aux|auxiliary|commitment|perceptual|latent|adv|gan)_(weight|coef|coeff)",
    ),
    ("streams", r"mhc_n|(num|n)_streams"),
    ("augmentation_level", r"(aug|augmentation)_(level|strength)"),
    ("use_augmentation", r"(use_)?(augmentation|augment|aug)"),
    ("oversample", r"oversample(_\w+)?"),
    ("batch_size", r"((train|per_device_train|micro|training)_)?batch_size|bs"),
    ("init_scale", r"(scaler_)?(init_scale|loss_scale|initial_scale)"),
    ("growth_interval", r"(scaler_)?growth_interval"),
    ("growth_factor", r"(scaler_)?growth_factor"),
    ("backoff_factor", r"(scaler_)?backoff_factor"),
    ("weight_decay", r"(weight_decay|wd)"),
    ("bn_momentum", r"bn_momentum|batch_?norm_momentum"),
    ("momentum", r"(sgd_)?momentum"),
    ("mixup_alpha", r"(mixup|cutmix)(_alpha)?"),
    ("ema_decay", r"ema_(decay|rate)"),
    (
        "accumulation",
        r"(grad(ient)?_)?accum(ulation)?(_steps|_iter|_iters)?|accumulate_grad_batches",
    ),
    ("dropout", r"(\w+_)?(dropout|drop_rate|drop_prob|drop_path(_rate)?)(_p|_prob|_rate)?"),
    ("use_amp", r"(use_)?(amp|fp16|half|mixed_precision)"),
    ("use_bf16", r"(use_)?(bf16|bfloat16)"),
    ("dtype", r"((torch|amp|compute|model|param|autocast)_)?dtype|precision"),
    ("optimizer", r"(optim(izer)?(_name|_type)?|opt)"),
)
_PATTERNS = tuple((q, re.compile(p)) for q, p in _NAMES)
_EPS = re.compile(r"eps|epsilon")
_PARENTS = (
    ("sinkhorn_eps", re.compile(r"sinkhorn|(^|_)ot(_|$)|transport")),
    ("norm_eps", re.compile(r"norm|(^|_)(ln|bn)(_|$)")),
    ("adam_eps", re.compile(r"opt|adam|rmsprop")),
)


def quantity_of(path: tuple[str, ...]) -> str | None:
    """The quantity that a key stands for, or None.

    >>> quantity_of(("optimizer", "lr")), quantity_of(("LEARNING_RATE",))
    ('lr', 'lr')
    >>> quantity_of(("optim", "betas", "1")), quantity_of(("model", "norm", "eps"))
    ('beta2', 'norm_eps')
    >>> quantity_of(("min_lr",)), quantity_of(("temp_dir",)), quantity_of(("teacher_temp", "3"))
    (None, None, 'temperature')
    """
    words = [re.sub(r"[^a-z0-9]+", "_", w.lower()).strip("_") for w in path]
    if len(words) > 1 and words[-1].isdigit():
        *words, place = words
        if re.fullmatch(r"(adamw?_|optim(izer)?_)?betas", words[-1]):
            return {"0": "beta1", "1": "beta2"}.get(place)
    last, above = words[-1], "_".join(words[:-1])
    if last == "beta" and re.search(r"optim|adam", above):
        return None
    if last == "gamma" and "focal" in above:
        return "focal_gamma"
    if last == "momentum" and re.search(r"norm|(^|_)bn(_|$)", above):
        return "bn_momentum"
    if last in ("name", "type") and re.search(r"optim", above):
        return "optimizer"
    if _EPS.fullmatch(last):
        return next((q for q, p in _PARENTS if p.search(above)), "eps")
    return next((q for q, p in _PATTERNS if p.fullmatch(last)), None)


def number_of(value: object) -> float | None:
    """The number that a value is; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)
