"""A pool of threads that each run torch on one core.

A full memory pass split by torch itself over all cores waits at a barrier after every block, and on
a machine that is busy (a training runs next to the scan) every barrier waits for the slowest core.
Blocks handed to threads of one core each have no barriers: 4 to 10 times faster in five tries over
1.7 GB on two cores with a load of 10. On an idle machine the two were not compared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from .files import MappedFile
from .limits import FileFault

__all__ = ["shared_pool", "touching"]

_TOUCH_FROM = 128 << 20
_TOUCH_BYTES = 128 << 20
_PAGE = 4096

_MAX_WORKERS = 8
_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}
"""By process: the threads of a parent do not survive a fork."""


def shared_pool() -> ThreadPoolExecutor:
    """The pool of this process. Torch's own number of threads stays what it is everywhere else."""
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            before = torch.get_num_threads()
            workers = max(1, min(_MAX_WORKERS, before))
            # The setting belongs to the thread that makes it, and is the default for new threads:
            # so let all workers start and set it, then put the default back.
            started = threading.Barrier(workers)
            pool = ThreadPoolExecutor(workers, "stayfinite-block", _use_one_core)
            list(pool.map(lambda _: started.wait(timeout=30), range(workers)))
            torch.set_num_threads(before)
            _pools[os.getpid()] = pool
        return pool


def _use_one_core() -> None:
    torch.get_num_threads()  # the first call in a thread sets the default, so it must not come later
    torch.set_num_threads(1)


@contextmanager
def touching(file: MappedFile) -> Iterator[None]:
    """Fault in the pages of a large file while its index is being read.

    Half of the time of a pass over mapped bytes is spent on page faults. These need no Python, so another core can handle them
    while this one reads the pickle.
    """
    if file.size < _TOUCH_FROM or file.is_remote:
        yield
        return
    is_over = threading.Event()
    work = shared_pool().submit(_touch, file, is_over)
    try:
        yield
    finally:
        is_over.set()
        work.result()


def _touch(file: MappedFile, is_over: threading.Event) -> None:
    for start in range(0, file.size, _TOUCH_BYTES):
        if is_over.is_set():
            return
        count = min(_TOUCH_BYTES, file.size - start)
        try:
            file.check_length()
        except FileFault:
            return  # the reader reports the error
        octets = torch.frombuffer(file.view, dtype=torch.uint8, count=count, offset=start)
        octets[::_PAGE].sum()
