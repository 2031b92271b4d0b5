"""Runs a replay in the live process so that it has no side effects."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from ..patches import Subscription, Target, close_all, subscribe, unpatched
from ..putting_back import put_back
from . import descriptors, file_rules, quiet, refusals, warning_rules
from .box import Abandoned, Box, Refused, Report, Rule, here, outside
from .imported_names import imported_names, stamp
from .interruptions import interruptions_outside
from .private_warnings import PrivateWarnings
from .replay_files import ReplayFiles
from .state import thread_state_kept

__all__ = ["computing_only"]

_RULES: tuple[Rule, ...] = (
    *quiet.RULES,
    *warning_rules.RULES,
    *file_rules.RULES,
    *descriptors.RULES,
    *refusals.RULES,
)
_SWITCH = "sandbox"


@contextlib.contextmanager
def computing_only(streams: Iterable[Any] = ()) -> Iterator[Report]:
    """In this block, the calling thread can compute but has no side effects.

    Prints, logging, warnings and progress bars are muted. Files that are written by path go to a temporary folder that is
    removed at the end. Sockets, processes, threads, signals and prompts raise `Refused`, and the returned report lists them.
    Sleeping is skipped. torch's global switches, `os.environ` and `sys.path` are restored. Other threads are not affected. A nested
    block in the same thread shares files and report. The user's signal handlers run as if there were no replay, and older garbage
    is not finalized.

    `streams`: file objects that were opened before and are to be muted too (see `open_streams`). Not covered: other such file
    objects, an `io.FileIO` that is made directly, memory that is mapped to a file, open database connections, C extensions that open
    files or write to stdout, packages that are first imported in the replay, and torch's record of warnings that are shown once.

    >>> with computing_only() as report:
    ...     print("not heard")
    ...     try:
    ...         _ = os.system("date")
    ...     except Refused as error:
    ...         caught = error
    >>> report.text()
    'not done during the replay: a subprocess (date)'
    """
    if here.box is not None:
        with _environ_kept(here.box), thread_state_kept():
            yield here.box.report
        return
    report = Report()
    box = _new_box(report)
    with (
        interruptions_outside(), _untraced(), thread_state_kept(), contextlib.ExitStack() as stack,
    ):  # fmt: skip
        stack.callback(box.files.remove_all)
        _subscribe(box, streams, stack)
        _open_boxes[id(box)] = (box, stack)
        stack.callback(_open_boxes.pop, id(box), None)
        here.box = box
        try:
            with _environ_kept(box):
                yield report
        except Abandoned:
            raise Refused(
                f"the replay was ended: {report.text() or 'it waited too often'}"
            ) from None
        finally:
            here.box = None


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Suspend debuggers and coverage tools, which should see the training but not its replay.

    A profiler that is not a Python function (`cProfile`) could not be restored, so it stays active.
    """
    switches: list[tuple[Any, Any]] = [
        (sys.gettrace(), sys.settrace),
        (sys.getprofile(), sys.setprofile),
    ]
    found = [(how, put) for how, put in switches if callable(how)]
    for _, put in found:
        put(None)
    try:
        yield
    finally:
        for how, put in found:
            put(how)


def _new_box(report: Report) -> Box:
    box: Box
    files = ReplayFiles(lambda what: box.refuse(what), lambda path: _note(report, path), outside)
    box = Box(files, PrivateWarnings(), report)
    return box


def _note(report: Report, path: str) -> None:
    if path not in report.redirected:
        report.redirected.append(path)


def _subscribe(box: Box, streams: Iterable[Any], stack: contextlib.ExitStack) -> None:
    wanted = list(_targets(stamp()))
    originals = {
        id(unpatched(vars(target.owner)[target.name])): (make, target.reason)
        for target, make in wanted
        if isinstance(target.owner, ModuleType) and target.name in vars(target.owner)
    }
    for module, name, (make, reason) in imported_names(originals):
        wanted.append((Target(module, name, reason, _SWITCH), make))
    wanted += quiet.stream_targets([*quiet.standard_streams(), *streams])
    made: list[Subscription] = []
    stack.callback(put_back, lambda: close_all(made))
    for target, make in wanted:
        made.append(subscribe(target, make, box))


@functools.lru_cache(maxsize=1)
def _targets(at: tuple[int, str]) -> list[tuple[Target, Any]]:
    """The patches for the imported modules; `at`: a stamp that changes with imports."""
    found = []
    for rule in _RULES:
        owner: Any = sys.modules.get(rule.module)
        *between, name = rule.path.split(".")
        for part in between:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, name):
            target = Target(owner, name, rule.reason, _SWITCH, rule.members)
            found.append((target, rule.make))
    return found


@contextlib.contextmanager
def _environ_kept(box: Box) -> Iterator[None]:
    """Restore only what the replay has set, because other threads may set variables too."""
    outer, box.environ = box.environ, {}
    try:
        yield
    finally:
        changed, box.environ = box.environ, outer
        outside(_put_back, changed)


def _put_back(environ: dict[str, str | None]) -> None:
    for key, value in environ.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


_open_boxes: dict[int, tuple[Box, contextlib.ExitStack]] = {}


def _drop_boxes_of_lost_threads() -> None:
    """In a forked child there is only one thread, so undo the patches of the others."""
    for box, stack in list(_open_boxes.values()):
        if box.thread != threading.get_ident():
            stack.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_boxes_of_lost_threads)
