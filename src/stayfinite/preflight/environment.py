"""The environment group: versions, devices, and switches that somebody left on."""

from __future__ import annotations

from .environment_facts import Facts, bytes_text, gather
from .environment_rules import RULES
from .probes import Checks, Subject
from .records import Finding, passed

__all__ = ["environment", "judge"]


def environment(subject: Subject) -> Checks:
    """What the process is like in which this training runs."""
    yield from ()
    return judge(gather(subject))


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
        "device": f"the model is on {f.model_device}" + _names(f),
        "dtype": f"autocast {f.autocast_dtype}" if f.autocast_dtype else f"{f.default_dtype}",
        "anomaly": "off",
        "grad-mode": "gradients are recorded",
        "determinism": "on" if f.is_deterministic else "not asked for",
        "tf32": f"matmul precision {f.matmul_precision!r}",
        "benchmark": "on" if f.cudnn_benchmark else "off",
        "debug-switches": "none set",
        "threads": f"{f.num_threads} of {f.num_cpus} cores",
        "shared-memory": "enough" if f.num_workers else "no worker processes",
        "memory": f"about {bytes_text(f.needed_bytes)} needed, {bytes_text(f.free_bytes)} free",
        "disk": f"{bytes_text(f.free_disk_bytes)} free",
    }
    return texts[check]


def _names(f: Facts) -> str:
    return f" ({f.device_name})" if f.device_name else ""
