"""Losses whose value and gradient stay finite."""

from .classification import binary_focal_loss, bpr_loss, focal_loss, masked_cross_entropy
from .contrastive import TemiOutput, beta_mi, info_nce, temi_loss
from .ctc import CtcOutput, ctc_loss
from .generative import gaussian_kl, gaussian_nll, normalized_mse
from .overlap import dice_loss, iou_loss

__all__ = [
    "CtcOutput",
    "TemiOutput",
    "beta_mi",
    "binary_focal_loss",
    "bpr_loss",
    "ctc_loss",
    "dice_loss",
    "focal_loss",
    "gaussian_kl",
    "gaussian_nll",
    "info_nce",
    "iou_loss",
    "masked_cross_entropy",
    "normalized_mse",
    "temi_loss",
]
