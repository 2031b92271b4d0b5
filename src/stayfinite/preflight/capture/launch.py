"""Checks a distributed training as one rank, with the launcher's variables set."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

__all__ = ["ELSEWHERE", "as_one_rank", "needs_launcher", "num_ranks"]

ELSEWHERE = "elsewhere.json"
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MISSING = re.compile(r"KeyError: '(\w+)'|environment variable (\w+) expected, but not set")


def num_ranks(environ: Mapping[str, str]) -> int:
    """The number of processes that a launcher has started; 0 without one.

    >>> num_ranks({"RANK": "1", "WORLD_SIZE": "4"}), num_ranks({})
    (4, 0)
    """
    if "RANK" not in environ:
        return 0
    size = environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def as_one_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the only process of a training, as `torchrun --nproc-per-node 1` sets it."""
    plain = {k: v for k, v in environ.items() if not k.startswith("TORCHELASTIC_")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    return {**plain, **ranks, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def needs_launcher(error: str, environ: Mapping[str, str]) -> bool:
    """Whether a script raised this because it has no rank.

    >>> needs_launcher("KeyError: 'LOCAL_RANK'", {})
    True
    >>> needs_launcher("KeyError: 'data'", {})
    False
    """
    found = _MISSING.search(error)
    name = (found[1] or found[2]) if found else ""
    return name in _NEEDED and name not in environ
