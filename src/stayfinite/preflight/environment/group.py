"""The environment group: versions, devices and global switches."""

from __future__ import annotations

from typing import Any

from ...devices import accelerator, has_accelerator
from ..probes import Checks, Subject
from ..records import Finding, passed
from .facts import Facts, bytes_text, gather
from .rules import RULES

__all__ = ["before_any_model", "environment", "judge"]


def environment(subject: Subject) -> Checks:
    """What the process is like in which this training runs."""
    yield from ()
    return judge(gather(subject))


def before_any_model(config: dict[str, Any] | None = None, config_path: str = "") -> Subject:
    """The machine, and a config perhaps: all that there is to look at without a training."""
    device = (accelerator() or "cpu") if has_accelerator() else "cpu"
    return Subject(models={}, device=device, config=config, config_path=config_path)


def judge(facts: Facts) -> list[Finding]:
    """Every rule on these facts: what is wrong, and a pass for each check that found nothing."""
    found: list[Finding] = []
    for check, rules in RULES.items():
        problems = [f for rule in rules if (f := rule(facts)) is not None]
        found += problems or [
            passed("environment", f"environment/{check}", _in_words(check, facts))
        ]
    return found


def _in_words(check: str, f: Facts) -> str:
    """What a check that passed has seen."""
    texts = {
        "versions": ", ".join(f"{k} {v}" for k, v in f.versions.items()) + f", Python {f.python}",
        "known-bad": f"none of the known pairs with torch {f.torch}",
        "device": _device(f) + _names(f),
        "dtype": f"autocast {f.autocast_dtype}" if f.autocast_dtype else f"{f.default_dtype}",
        "anomaly": "off",
        "grad-mode": "gradients are recorded",
        "determinism": "on" if f.is_deterministic else "not asked for",
        "tf32": f"matmul precision {f.matmul_precision!r}",
        "benchmark": "on" if f.cudnn_benchmark else "off",
        "debug-switches": "none set",
        "threads": f"{f.num_threads} of {f.num_cpus} cores",
        "shared-memory": "enough" if f.num_workers else "no worker processes",
        "memory": _needed(f) + f"{bytes_text(f.free_bytes)} free",
        "disk": f"{bytes_text(f.free_disk_bytes)} free",
    }
    return texts[check]


def _device(f: Facts) -> str:
    if f.has_model:
        return f"the model is on {f.model_device}"
    return "no accelerator: the CPU" if f.model_device == "cpu" else f"there is {f.model_device}"


def _needed(f: Facts) -> str:
    return f"about {bytes_text(f.needed_bytes)} needed, " if f.has_model else ""


def _names(f: Facts) -> str:
    return f" ({f.device_name})" if f.device_name else ""
