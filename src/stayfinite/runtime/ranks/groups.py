"""Finds whether and with whom a training is shared; reads the launcher's variables."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import _JoinConfig
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

__all__ = [
    "group_of",
    "groups_in_use",
    "has_memory",
    "has_world",
    "is_sharded",
    "is_whole",
    "launched_at",
    "launched_rank",
    "own_rank",
    "sequence_of",
    "unsynced",
    "without_sync",
    "world_of_all",
    "wrappers_of",
    "wrappers_over",
    "wrappers_there_are",
]


def launched_rank() -> int:
    """The rank that a launcher gave to this process, before it has joined the others: torchrun, or Lightning,
    which tells only the place on this machine."""
    text = os.environ.get("RANK") or (os.environ.get("WORLD_SIZE") and os.environ.get("LOCAL_RANK"))
    return int(text) if text and text.isdigit() else 0


def own_rank() -> int:
    """This process among those of its training, as far as anybody knows by now."""
    return dist.get_rank() if has_world() else launched_rank()


def launched_at() -> float:
    """When this run began: under torchrun the launcher's start, so that all its ranks agree."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.time()
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(stat[19]) / os.sysconf("SC_CLK_TCK")
        return float(round(time.time() - age))
    except (OSError, ValueError, IndexError):
        return time.time()


has_world: Callable[[], bool] = dist.is_initialized if dist.is_available() else bool
"""Whether there is a process group at all: asked in every step, the rest only then."""


def world_of_all() -> Any:
    """The process group of all, or None where there is nobody to agree with."""
    if not has_world():
        return None
    world = dist.group.WORLD
    return world if world is not None and world.size() > 1 else None


def sequence_of(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1


def group_of(optimizer: Optimizer, wrappers: list[Any]) -> Any:
    """The processes that hold parts or copies of what this optimizer moves, or None."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    groups: list[Any] = []
    for mesh in {id(m): m for p in params if (m := getattr(p, "device_mesh", None))}.values():
        groups.append(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD)
    groups += [module.process_group for module in wrappers]
    distinct = list({id(g): g for g in groups if g.size() > 1}.values())
    if len(distinct) > 1:
        return dist.group.WORLD
    return distinct[0] if distinct else None


def groups_in_use(whole: Any, wrappers: list[Any], optimizers: list[Optimizer]) -> list[Any]:
    """All groups that a training is known to talk over, in the same order on every rank."""
    params = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    meshes = {id(m): m for p in params if (m := getattr(p, "device_mesh", None)) is not None}
    found = [whole, *(module.process_group for module in wrappers)]
    found += [g for mesh in meshes.values() for g in mesh.get_all_groups()]
    return list({g.group_name: g for g in found}.values())


def wrappers_of(optimizer: Optimizer) -> list[Any]:
    return wrappers_over(wrappers_there_are(), [optimizer])


def wrappers_over(wrappers: list[Any], optimizers: Iterable[Optimizer]) -> list[Any]:
    """Of these, the ones whose parameters such an optimizer moves."""
    ids = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [m for m in wrappers if any(id(p) in ids for p in m.parameters())]


def is_whole(optimizer: Optimizer) -> bool:
    """Whether this rank has all of what it moves: no shards, and no stage of a pipeline."""
    params = [p for g in optimizer.param_groups for p in g["params"]]
    return not any(is_sharded(p) for p in params) and not _is_staged(optimizer)


def _is_staged(optimizer: Optimizer) -> bool:
    """Whether what it moves is a stage of a pipeline (`torch.distributed.pipelining`)."""
    kind = getattr(
        sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None
    )
    if kind is None:
        return False
    ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    is_one = functools.partial(type.__subclasscheck__, kind)
    stages = [o for o in gc.get_objects() if is_one(type(o))]
    return any(id(p) in ids for stage in stages for p in stage.submod.parameters())


def wrappers_there_are() -> list[Any]:
    # type(), not isinstance(): that would wake lazy modules and weak references' proxies. And past the abstract
    # base class that DDP has: its check is written in Python, and the heap is large.
    is_one = functools.partial(type.__subclasscheck__, DistributedDataParallel)
    return [o for o in gc.get_objects() if is_one(type(o))]


def is_sharded(parameter: Tensor) -> bool:
    return getattr(parameter, "device_mesh", None) is not None


def has_memory(module: Any) -> bool:
    """Whether a hook that keeps something from step to step exchanges its gradients (PowerSGD's errors). What such a
    hook says in a callback of its own cannot be led to other groups."""
    states = [state for _, state in getattr(module, "_comm_hooks", ())]
    return any(s is not None and not isinstance(s, dist.ProcessGroup) for s in states)


@contextlib.contextmanager
def unsynced(wrappers: list[Any]) -> Iterator[None]:
    """As under `no_sync`: gradients stay on this rank and are added up."""
    with contextlib.ExitStack() as stack:
        for module in wrappers:
            stack.enter_context(module.no_sync())
        yield


@contextlib.contextmanager
def without_sync(wrappers: list[Any], stepped: list[Any]) -> Iterator[None]:
    """Models in DistributedDataParallel called without a word to the other ranks; `stepped`: those in which the
    training's own backward is over."""
    instead = {
        "require_forward_param_sync": False,
        "require_backward_grad_sync": False,
        "_join_config": _JoinConfig.construct_disabled_join_config(),
    }
    # In a replay the collector shows nothing that is older.
    found = {id(m): m for m in (*wrappers, *wrappers_there_are())}
    kept = [(module, {n: getattr(module, n) for n in instead}) for module in found.values()]
    for module, _ in kept:
        for name, value in instead.items():
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, values in kept:
            for name, value in values.items():
                setattr(module, name, value)
        for module in stepped:
            _forget_used(module)


def _forget_used(module: Any) -> None:
    """With `find_unused_parameters` a gradient that stays on this rank marks its parameter as used, and the next
    backward of the training would go by that mark. The buckets are never made again then, so they stay as they are."""
    if module.find_unused_parameters and not module.static_graph:
        module.reducer._reset_state()
