"""The config rules as a table: quantity, condition, limit, source, action.

Every limit has a source; docs/CHECK.md shows the same table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["RULES", "Rule", "broken", "expected_range"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule. It is broken if the value is outside its bounds."""

    name: str
    quantity: str
    status: str
    action: str
    source: str
    when: tuple[str, ...] = ()
    """Tags that the training must have."""
    unless: tuple[str, ...] = ()
    above: float = -math.inf
    """The value must be above this."""
    below: float = math.inf
    """The value must be below this."""
    at_least: float = -math.inf
    at_most: float = math.inf
    weight: float = 1.0

    def is_broken_by(self, value: float) -> bool:
        if not math.isfinite(value):
            return True
        return not (self.above < value < self.below and self.at_least <= value <= self.at_most)


def broken(quantity: str, value: float, tags: frozenset[str]) -> Rule | None:
    """The first rule (fails come first) that this value breaks."""
    for rule in _BY_STATUS:
        if rule.quantity != quantity or not tags.issuperset(rule.when):
            continue
        if not tags.isdisjoint(rule.unless):
            continue
        if rule.is_broken_by(value):
            return rule
    return None


def expected_range(rule: Rule) -> str:
    """The bounds as text.

    >>> expected_range(RULES[0])
    'above 0'
    """
    parts = []
    for word, bound in (
        ("above", rule.above), ("at least", rule.at_least), ("below", rule.below),
        ("at most", rule.at_most),
    ):  # fmt: skip
        if math.isfinite(bound):
            parts.append(f"{word} {bound:g}")
    return " and ".join(parts)


_KINGMA = "Kingma & Ba 2015: 1e-3, betas 0.9/0.999, eps 1e-8 as tested defaults"
_HALF = "float16's smallest subnormal is 6e-8 (IEEE 754); anything below half of it becomes 0"

RULES: tuple[Rule, ...] = (
    Rule(name="lr", quantity="lr", status="fail", above=0.0,
         action="set a learning rate above 0", source="a step of 0 or NaN learns nothing", weight=9),
    Rule(name="lr", quantity="lr", when=("adam",), status="fail", at_most=0.1,
         action="start at 1e-3 or below", source=_KINGMA, weight=9),
    Rule(name="lr", quantity="lr", when=("adam",), status="warn", at_most=0.01,
         action="start at 1e-3 or below", source=_KINGMA, weight=6),
    Rule(name="lr", quantity="lr", when=("adam", "attention", "no-schedule"), status="warn",
         at_most=1e-3, action="warm up over the first 2000 to 4000 steps, or use 3e-4 or below",
         source="Vaswani et al. 2017 (4000 steps of warmup); Xiong et al. 2020", weight=5),
    Rule(name="lr", quantity="lr", when=("lion",), status="warn", at_most=1e-3,
         action="use 3 to 10 times less than for AdamW: 1e-4 or below",
         source="Chen et al. 2023 (Lion)", weight=5),
    Rule(name="lr", quantity="lr", when=("sgd",), status="fail", at_most=10.0,
         action="start at 0.1 or below", source="Goyal et al. 2017: 0.1 for 256 samples, 3.2 for 8192",
         weight=9),
    Rule(name="lr", quantity="lr", when=("sgd",), unless=("large-batch",), status="warn", at_most=1.0,
         action="start at 0.1 or below", source="Goyal et al. 2017: 0.1 for 256 samples, 3.2 for 8192",
         weight=6),
    Rule(name="lr", quantity="lr", when=("unknown-optimizer",), status="warn", at_most=1.0,
         action="start at 0.1 (SGD) or 1e-3 (Adam) or below", source=f"Goyal et al. 2017; {_KINGMA}",
         weight=6),
    Rule(name="lr", quantity="lr", status="warn", at_least=1e-8, action="use 1e-6 or more",
         source="a relative update below float32's 6e-8 is rounded away", weight=2),
    Rule(name="warmup", quantity="warmup_steps", status="fail", at_least=0,
         action="set 0 or more", source="a count"),
    Rule(name="warmup", quantity="warmup_ratio", status="fail", at_least=0, at_most=1,
         action="set a share between 0 and 1", source="a share"),
    Rule(name="warmup", quantity="warmup_ratio", status="warn", at_most=0.5,
         action="warm up over 1 to 10 % of the steps",
         source="Devlin et al. 2019: 1 % of the steps; Liu et al. 2019: 6 %"),
    Rule(name="clip", quantity="clip", status="fail", above=0.0,
         action="set 1.0, or leave clipping out", source="a norm of 0 zeroes every gradient", weight=8),
    Rule(name="clip", quantity="clip", status="warn", at_most=1000.0,
         action="set 1.0: a limit that is never reached does nothing",
         source="Pascanu et al. 2013; one public run clipped at 1e6 and was lost", weight=3),
    Rule(name="clip", quantity="clip", status="warn", at_least=1e-3,
         action="set 0.1 or more, and lower the learning rate instead",
         source="Pascanu et al. 2013: about the typical norm", weight=2),
    Rule(name="beta1", quantity="beta1", status="fail", at_least=0.0, below=1.0,
         action="set 0.9", source=_KINGMA, weight=7),
    Rule(name="beta1", quantity="beta1", status="warn", at_most=0.98, action="set 0.9", source=_KINGMA),
    Rule(name="beta2", quantity="beta2", status="fail", at_least=0.0, below=1.0,
         action="set 0.999, or 0.95 for large transformers", source=_KINGMA, weight=7),
    Rule(name="beta2", quantity="beta2", status="warn", at_least=0.9, at_most=0.9999,
         action="set 0.999, or 0.95 for large transformers",
         source="Kingma & Ba 2015 (0.999); Wortsman et al. 2023 (0.95 to 0.99 against spikes)"),
    Rule(name="adam-eps", quantity="adam_eps", status="fail", above=0.0, action="set 1e-8", weight=8,
         source="0/0 for a parameter whose gradient has been zero so far"),
    Rule(name="adam-eps", quantity="adam_eps", when=("half-parameters",), status="fail",
         at_least=6e-8, action="set 1e-4, or keep the parameters in float32", source=_HALF, weight=8),
    Rule(name="adam-eps", quantity="adam_eps", status="warn", at_most=0.1,
         action="set 1e-8 (1e-3 at most)", source="Szegedy et al. 2016 go up to 1.0 for RMSprop only"),
    Rule(name="adam-eps", quantity="adam_eps", status="warn", at_least=1e-15, action="set 1e-8",
         source=_KINGMA, weight=2),
    Rule(name="weight-decay", quantity="weight_decay", status="fail", at_least=0.0,
         action="set 0 or more: a negative decay makes the weights grow", source="definition", weight=8),
    Rule(name="weight-decay", quantity="weight_decay", when=("decoupled",), status="warn", at_most=1.0,
         action="set 0.1 or below", source="Loshchilov & Hutter 2019; GPT-3 uses 0.1", weight=3),
    Rule(name="weight-decay", quantity="weight_decay", unless=("decoupled",), status="warn",
         at_most=0.1, action="set 1e-4, or use AdamW",
         source="He et al. 2016 use 1e-4; as L2 it is divided by Adam's denominator", weight=3),
    Rule(name="momentum", quantity="momentum", status="fail", at_least=0.0, below=1.0,
         action="set 0.9", source="the velocity is a sum of powers of it", weight=8),
    Rule(name="momentum", quantity="momentum", status="warn", at_most=0.99, action="set 0.9",
         source="Sutskever et al. 2013: up to 0.99", weight=3),
    Rule(name="ema", quantity="ema_decay", status="fail", at_least=0.0, below=1.0,
         action="set 0.999", source="an average with a decay of 1 never moves"),
    Rule(name="temperature", quantity="temperature", status="fail", above=0.0,
         action="set 0.07 or more", source="logits are divided by it", weight=8),
    Rule(name="temperature", quantity="temperature", status="warn", at_least=0.01,
         action="set 0.04 or more",
         source="Radford et al. 2021 (CLIP) cap the scale at 100; Caron et al. 2021 use 0.04 to 0.1",
         weight=5),
    Rule(name="focal-gamma", quantity="focal_gamma", status="fail", at_least=0.0,
         action="set 2", source="Lin et al. 2017 (focal loss)", weight=6),
    Rule(name="focal-gamma", quantity="focal_gamma", status="warn", at_most=5.0,
         action="set 2", source="Lin et al. 2017 try 0 to 5, best 2", weight=3),
    Rule(name="focal-gamma-root", quantity="focal_gamma_fraction", status="warn", at_least=1.0,
         action="set 0, or 1 or more: the derivative of (1 - p)^gamma is infinite at p = 1",
         source="calculus", weight=5),
    Rule(name="label-smoothing", quantity="label_smoothing", status="fail", at_least=0.0, below=1.0,
         action="set 0.1", source="Szegedy et al. 2016: 0.1", weight=6),
    Rule(name="label-smoothing", quantity="label_smoothing", status="warn", at_most=0.3,
         action="set 0.1", source="Szegedy et al. 2016: 0.1", weight=2),
    Rule(name="sinkhorn", quantity="sinkhorn_eps", status="fail", above=0.0, action="set 0.05",
         source="the cost is divided by it", weight=8),
    Rule(name="sinkhorn", quantity="sinkhorn_eps", status="warn", at_least=0.0115,
         action="set 0.05, or iterate in the log domain",
         source="exp(-1/eps) underflows float32 below 1/87; Peyré & Cuturi 2019, section 4.4", weight=5),
    Rule(name="norm-eps", quantity="norm_eps", status="fail", above=0.0, action="set 1e-5", weight=8,
         source="a constant row is divided by 0"),
    Rule(name="norm-eps", quantity="norm_eps", when=("half-parameters",), status="fail", at_least=6e-8,
         action="set 1e-5, or keep the layer in float32", source=_HALF, weight=7),
    Rule(name="norm-eps", quantity="norm_eps", status="warn", at_least=1e-12, action="set 1e-6 or more",
         source="1/sqrt(eps) is the largest gain: 1e6 at 1e-12; torch's default is 1e-5", weight=4),
    Rule(name="norm-eps", quantity="norm_eps", status="warn", at_most=0.1, action="set 1e-5",
         source="torch's default is 1e-5; EfficientNet's 1e-3 is the largest in wide use", weight=2),
    Rule(name="eps", quantity="eps", when=("fp16",), status="warn", at_least=6e-8,
         action="set 1e-6 or more, or compute this in float32", source=_HALF, weight=5),
    Rule(name="batch-norm", quantity="bn_batch", status="fail", at_least=2,
         action="use GroupNorm, or batches of 16 or more",
         source="the variance of one value is 0", weight=8),
    Rule(name="batch-norm", quantity="bn_batch", status="warn", at_least=4,
         action="use GroupNorm or SyncBatchNorm, or batches of 16 or more",
         source="Wu & He 2018: the error rises below 8, by a tenth at 2", weight=4),
    Rule(name="bn-momentum", quantity="bn_momentum", status="warn", above=0.0, at_most=0.5,
         action="set 0.1", source="torch's default is 0.1: the share of the newest batch", weight=3),
    Rule(name="init-scale", quantity="init_scale", status="warn", at_least=1.0, at_most=2.0**24,
         action="set 65536", source="Micikevicius et al. 2018: 8 to 32768 were enough; torch: 65536",
         weight=4),
    Rule(name="growth-interval", quantity="growth_interval", status="warn", at_least=100,
         action="set 2000", source="torch's default is 2000: each growth may cost a step", weight=4),
    Rule(name="growth-factor", quantity="growth_factor", status="warn", above=1.0, at_most=4.0,
         action="set 2.0", source="torch's default is 2.0", weight=4),
    Rule(name="backoff-factor", quantity="backoff_factor", status="warn", above=0.0, at_most=0.9,
         action="set 0.5", source="torch's default is 0.5", weight=4),
    Rule(name="dropout", quantity="dropout", status="fail", at_least=0.0, below=1.0,
         action="set 0.1", source="at 1 nothing is left, and the rest is divided by 0", weight=7),
    Rule(name="dropout", quantity="dropout", status="warn", at_most=0.8, action="set 0.5 or below",
         source="Srivastava et al. 2014: 0.5; 0.2 for inputs", weight=2),
    Rule(name="mixup", quantity="mixup_alpha", status="fail", at_least=0.0, action="set 0.2",
         source="the parameter of a Beta distribution", weight=5),
    Rule(name="mixup", quantity="mixup_alpha", status="warn", at_most=8.0, action="set 0.2 to 1.0",
         source="Zhang et al. 2018: 0.1 to 0.4 for ImageNet, 1.0 for CIFAR"),
    Rule(name="batch-size", quantity="batch_size", status="fail", at_least=1,
         action="set 1 or more", source="a count"),
    Rule(name="accumulation", quantity="accumulation", status="fail", at_least=1,
         action="set 1 or more", source="a count"),
)  # fmt: skip

_BY_STATUS = tuple(sorted(RULES, key=lambda r: r.status != "fail"))
