"""Finds the processes that share a training, and reads the launcher's variables."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import _JoinConfig
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

__all__ = [
    "group_of",
    "groups_in_use",
    "has_flat_shards",
    "has_memory",
    "has_world",
    "is_sharded",
    "is_whole",
    "launched_at",
    "launched_rank",
    "let_threads_finish",
    "own_rank",
    "prepare_for_backward",
    "sequence_of",
    "still_to_run_backward",
    "unsynced",
    "without_sync",
    "world_of_all",
    "wrappers_of",
    "wrappers_over",
    "wrappers_there_are",
]


def launched_rank() -> int:
    """The rank that a launcher (torchrun) gave to this process, before the process group exists."""
    text = os.environ.get("RANK") or (os.environ.get("WORLD_SIZE") and os.environ.get("LOCAL_RANK"))
    return int(text) if text and text.isdigit() else 0


def own_rank() -> int:
    """The index of this process in its training, as far as it is known."""
    return dist.get_rank() if has_world() else launched_rank()


def launched_at() -> float:
    """The start time of this run: under torchrun that of the launcher, the same on all ranks."""
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
"""Whether there is a process group; checked in every step."""


def world_of_all() -> Any:
    """The default process group, or None without other ranks."""
    if not has_world():
        return None
    world = dist.group.WORLD
    return world if world is not None and world.size() > 1 else None


def let_threads_finish(seconds: float = 1.0) -> None:
    """Call this before a process group is freed: it waits until no other thread of this process wants to run.

    A thread of gloo takes the interpreter's lock to drop the tensors of its last collective. Whoever frees the group has
    that lock and waits for that thread, so on a busy machine both would wait forever.
    """
    end, num_quiet = time.monotonic() + seconds, 0
    while num_quiet < 3 and time.monotonic() < end:
        time.sleep(0.002)  # without the lock
        num_quiet = 0 if _has_running_thread() else num_quiet + 1


def _has_running_thread() -> bool:
    own = str(threading.get_native_id())
    states = []
    for task in Path("/proc/self/task").glob("*/stat"):  # none on other systems than Linux
        if task.parent.name != own:
            with contextlib.suppress(OSError):  # a thread that has just ended
                states.append(task.read_text().rpartition(")")[2].split()[0])
    return "R" in states


def sequence_of(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1


def group_of(optimizer: Optimizer, wrappers: list[Any]) -> Any:
    """The group with parts or copies of this optimizer's parameters, or None."""
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
    """All groups over which a training is known to communicate, in the same order on every rank."""
    params = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    meshes = {id(m): m for p in params if (m := getattr(p, "device_mesh", None)) is not None}
    found = [whole, *(module.process_group for module in wrappers)]
    found += [g for mesh in meshes.values() for g in mesh.get_all_groups()]
    return list({g.group_name: g for g in found}.values())


def wrappers_of(optimizer: Optimizer) -> list[Any]:
    return wrappers_over(wrappers_there_are(), [optimizer])


def wrappers_over(wrappers: list[Any], optimizers: Iterable[Optimizer]) -> list[Any]:
    """The wrappers whose parameters such an optimizer updates."""
    ids = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [m for m in wrappers if any(id(p) in ids for p in m.parameters())]


def is_whole(optimizer: Optimizer) -> bool:
    """Whether this rank has all parameters of the optimizer: no shards, and no pipeline stage."""
    params = [p for g in optimizer.param_groups for p in g["params"]]
    if any(is_sharded(p) for p in params):
        return False
    ids = {id(p) for p in params}
    stages = [stage.submod for stage in _instances("pipelining.stage", "_PipelineStageBase")]
    parts = [*stages, *_instances(*_FLAT)]
    return not any(id(p) in ids for part in parts for p in part.parameters())


_FLAT = ("fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")


def has_flat_shards(modules: Iterable[nn.Module]) -> bool:
    """Whether a FullyShardedDataParallel is among them, the form before `fully_shard`. A step of it that breaks off
    leaves its parameters gathered half-way, so nothing is computed again with it."""
    kind = _kind(*_FLAT)
    return kind is not None and any(isinstance(m, kind) for root in modules for m in root.modules())


def _kind(module: str, name: str) -> Any:
    """A class of torch's, if anybody has imported it."""
    return getattr(sys.modules.get(f"torch.distributed.{module}"), name, None)


def _instances(module: str, name: str) -> list[Any]:
    kind = _kind(module, name)
    if kind is None:
        return []
    is_one = functools.partial(type.__subclasscheck__, kind)
    return [o for o in gc.get_objects() if is_one(type(o))]


def wrappers_there_are() -> list[Any]:
    # DDP: its check is written in Python, and the heap is large.
    is_one = functools.partial(type.__subclasscheck__, DistributedDataParallel)
    return [o for o in gc.get_objects() if is_one(type(o))]


def is_sharded(parameter: Tensor) -> bool:
    return getattr(parameter, "device_mesh", None) is not None


def has_memory(module: Any) -> bool:
    """Whether a communication hook with a state across steps exchanges its gradients (PowerSGD). Messages in the callbacks
    of such a hook cannot be redirected to other groups.
    """
    states = [state for _, state in getattr(module, "_comm_hooks", ())]
    return any(s is not None and not isinstance(s, dist.ProcessGroup) for s in states)


@contextlib.contextmanager
def unsynced(wrappers: list[Any]) -> Iterator[None]:
    """As under `no_sync`: gradients are accumulated on this rank."""
    with contextlib.ExitStack() as stack:
        for module in wrappers:
            stack.enter_context(module.no_sync())
        yield


@contextlib.contextmanager
def without_sync(wrappers: list[Any], stepped: list[Any]) -> Iterator[None]:
    """Call models in DistributedDataParallel without communication; `stepped`: those in which the backward of the
    training is over.
    """
    instead = {
        "require_forward_param_sync": False,
        "require_backward_grad_sync": False,
        "_join_config": _JoinConfig.construct_disabled_join_config(),
    }
    # In a replay the collector lists only newer objects.
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


def still_to_run_backward(stepped: Iterable[Optimizer]) -> list[Any]:
    """The wrappers of other optimizers whose forward is done and whose backward may still come: a tensor that is alive leads
    to their parameters. In a GAN, the step of the discriminator fails while the generator waits for its own backward.
    """
    wrappers = wrappers_there_are() if has_world() else []
    over = wrappers_over(wrappers, stepped)
    waiting = [
        m for m in wrappers if m.require_forward_param_sync and all(m is not o for o in over)
    ]
    owners = {id(p): m for m in waiting for p in m.parameters()}
    is_one = functools.partial(type.__subclasscheck__, Tensor)
    todo = [o.grad_fn for o in gc.get_objects() if is_one(type(o))] if waiting else []
    seen, found = set(), {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        owner = owners.get(id(getattr(node, "variable", None)))
        if owner is not None:
            found[id(owner)] = owner
        todo += [following for following, _ in node.next_functions]
    return list(found.values())


def prepare_for_backward(wrappers: list[Any]) -> None:
    """Let the next backward of each be exchanged, as at the end of its forward."""
    for module in wrappers:
        if not module.find_unused_parameters:  # else its forward has to say which are used
            module.reducer.prepare_for_backward([])


def _forget_used(module: Any) -> None:
    """Preserve the marks of `find_unused_parameters`: a gradient that stays on this rank marks its parameter as used, which
    would affect the next backward of the training.
    """
    if module.find_unused_parameters and not module.static_graph:
        module.reducer._reset_state()
