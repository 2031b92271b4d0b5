"""Runs a scan on the workers of a Ray cluster.

One task is one file (or one shard). If a worker dies, its file goes to another one. The reports are collected and combined as
after a local scan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import MissingExtraError, UsageError
from .measure import Asked, Probe
from .records import FileReport
from .running import Outcomes, Progress, Task, failed_report, guarded, size_of

__all__ = ["run_on_ray"]

_MAX_RETRIES = 5
_PER_WORKER = 4
"""Files that wait for each worker: enough that none is idle, few enough that little is lost."""


def run_on_ray(
    tasks: list[Task], address: str, asked: Asked, progress: Progress, keep_partial: bool
) -> Outcomes:
    """All tasks on the cluster at `address`; "local" makes one on this machine."""
    progress.num_files = len(tasks)
    progress.total_bytes = sum(size_of(t.path) for t in tasks)
    outcomes = Outcomes()
    found: dict[int, FileReport] = {}
    with _cluster(address) as ray:
        look = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES, retry_exceptions=False)(_look)
        try:
            for number, report in _spread(ray, look, tasks, asked):
                found[number] = report
                progress.done_files += 1
                progress.done_bytes += size_of(tasks[number].path)
        except KeyboardInterrupt:
            if not keep_partial:
                raise
    for number, task in enumerate(tasks):
        outcomes.add(task, found.get(number))
    return outcomes


def _look(task: Task, asked: Asked) -> FileReport:
    """The work of a worker; nothing in a file is executed there either."""
    return guarded(task, Probe(asked=asked))


def _spread(
    ray: Any, look: Any, tasks: list[Task], asked: Asked
) -> Iterator[tuple[int, FileReport]]:
    """(number, report) as they arrive, the largest files first."""
    order = sorted(range(len(tasks)), key=lambda i: -size_of(tasks[i].path))
    waiting = iter(order)
    running: dict[Any, int] = {}
    room = max(1, int(ray.cluster_resources().get("CPU", 1))) * _PER_WORKER
    while True:
        for number in waiting:
            running[look.remote(tasks[number], asked)] = number
            if len(running) >= room:
                break
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
        for ref in ready:
            number = running.pop(ref)
            yield number, _result(ray, ref, tasks[number])


def _result(ray: Any, ref: Any, task: Task) -> FileReport:
    try:
        report: FileReport = ray.get(ref)
        return report
    except ray.exceptions.RayError as e:
        tries = _MAX_RETRIES + 1
        return failed_report(task, f"lost with its worker {tries} times: {type(e).__name__}")


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Connect to Ray; a cluster that was started here is stopped at the end."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError("scan --ray", "ray") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        options: dict[str, Any] = {"log_to_driver": False}
        if address == "local":
            options |= {"include_dashboard": False, "logging_level": "error"}
        else:
            options["address"] = address
        paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | _no_usage_stats()
        try:
            ray.init(runtime_env={"env_vars": paths}, **options)
        except (ConnectionError, ValueError, RuntimeError) as e:
            raise UsageError(f"no Ray cluster at {address!r}: {e!s:.200}") from None
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def _no_usage_stats() -> dict[str, str]:
    """Disable Ray's usage reports."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return {"RAY_USAGE_STATS_ENABLED": "0"}
