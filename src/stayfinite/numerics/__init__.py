"""Operations, losses and layers whose value and gradient stay finite; see docs/NUMERICS.md.

from stayfinite.numerics import safe_log, masked_mean, focal_loss, RMSNorm
"""

from .arcs import safe_acos, safe_asin, safe_atanh
from .attention import stable_attention
from .eps import eps_for
from .init import finite_init_, unregistered_leaves
from .layers import (
    BoundedTemperature,
    LogSinkhorn,
    RMSNorm,
    SafeBatchNorm1d,
    SafeBatchNorm2d,
    SafeBatchNorm3d,
    log_sinkhorn,
)
from .logspace import log1mexp, log_mixture, safe_logaddexp
from .losses import (
    CtcOutput,
    TemiOutput,
    beta_mi,
    binary_focal_loss,
    bpr_loss,
    ctc_loss,
    dice_loss,
    focal_loss,
    gaussian_kl,
    gaussian_nll,
    info_nce,
    iou_loss,
    masked_cross_entropy,
    normalized_mse,
    temi_loss,
)
from .masked import masked_log_softmax, masked_logsumexp, masked_mean, masked_softmax, masked_sum
from .ops import bound, p_log_p, safe_div, safe_exp, safe_log, safe_pow, safe_sqrt
from .reduce import (
    cosine_similarity,
    pairwise_distance,
    safe_norm,
    safe_normalize,
    safe_std,
    safe_var,
)

__all__ = [
    "BoundedTemperature",
    "CtcOutput",
    "LogSinkhorn",
    "RMSNorm",
    "SafeBatchNorm1d",
    "SafeBatchNorm2d",
    "SafeBatchNorm3d",
    "TemiOutput",
    "beta_mi",
    "binary_focal_loss",
    "bound",
    "bpr_loss",
    "cosine_similarity",
    "ctc_loss",
    "dice_loss",
    "eps_for",
    "finite_init_",
    "focal_loss",
    "gaussian_kl",
    "gaussian_nll",
    "info_nce",
    "iou_loss",
    "log1mexp",
    "log_mixture",
    "log_sinkhorn",
    "masked_cross_entropy",
    "masked_log_softmax",
    "masked_logsumexp",
    "masked_mean",
    "masked_softmax",
    "masked_sum",
    "normalized_mse",
    "p_log_p",
    "pairwise_distance",
    "safe_acos",
    "safe_asin",
    "safe_atanh",
    "safe_div",
    "safe_exp",
    "safe_log",
    "safe_logaddexp",
    "safe_norm",
    "safe_normalize",
    "safe_pow",
    "safe_sqrt",
    "safe_std",
    "safe_var",
    "stable_attention",
    "temi_loss",
    "unregistered_leaves",
]
