"""Runs a replay in the live process so that it computes and does nothing else."""

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
    """While this is entered, the calling thread computes and nothing it does is felt outside.

    Prints, logging, warnings and progress bars are muted; what is written by path goes to a temporary
    folder that is removed at the end; sockets, processes, threads, signals and questions are `Refused`,
    and the report that is returned says which; sleeping is skipped; torch's switches, `os.environ` and
    `sys.path` are put back. All other threads pass straight through. Inside another `computing_only` of
    the same thread it shares that one's files and report. The user's signal handlers run as if there were
    no replay, and older garbage is not finalized in it.

    `streams`: file objects that were opened before and are to be muted too (see `open_streams`). Not
    caught: other such file objects, an `io.FileIO` that is made by hand, memory that is mapped to a file,
    open connections of databases, extensions that open files or write to stdout in C, packages that are
    first imported in the replay, what torch remembers of warnings that it gives once.

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
    """A debugger's breakpoints, a measure of coverage: what they see is the training, not its replay.

    A profiler that is no function (`cProfile`) could not be set again from here, and stays.
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
    """The rules for what is imported; `at`: the stamp of the moment."""
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
    """Only what the replay has set is put back: other threads may set variables too."""
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
    """A forked child has one thread only; what the others had patched is undone there."""
    for box, stack in list(_open_boxes.values()):
        if box.thread != threading.get_ident():
            stack.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_boxes_of_lost_threads)
