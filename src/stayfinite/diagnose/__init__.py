"""From *where* to *why* and *what to change*: evidence, rules, ranked causes.

from stayfinite.diagnose import register_rule, Evidence, Finding
"""

from .evidence import Evidence
from .experiments import experiment, known_experiments
from .registry import Finding, Rule, all_rules, register_rule, unregister_rule
from .rules import load as _load

__all__ = [
    "Evidence",
    "Finding",
    "Rule",
    "all_rules",
    "experiment",
    "known_experiments",
    "register_rule",
    "unregister_rule",
]

_load()
