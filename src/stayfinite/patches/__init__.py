"""All patches of code outside of stayfinite, in one table."""

from __future__ import annotations

from .firewall import Firewall, failures, guarded
from .manager import Row, Subscribers, Subscription, Target, close_all, subscribe, table, unpatched

__all__ = [
    "Firewall",
    "Row",
    "Subscribers",
    "Subscription",
    "Target",
    "close_all",
    "failures",
    "guarded",
    "subscribe",
    "table",
    "unpatched",
]
