"""Lists what can be changed in a script, without training.

The script runs until it requests its first batch, calls a model, or ends: by then it has parsed its arguments and read its
config.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import sysconfig
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..devices import has_accelerator
from ..errors import UsageError
from ..patches.manager import Subscribers, Target, subscribe
from ..plain import to_plain
from ..runtime.script.as_main import run_module_as_main, run_path_as_main
from ..runtime.script.spawned import trains
from .answer import finish, prepare
from .arguments import changed, describe_parser, find_flag, typed_flags
from .configs import SUFFIXES
from .records import PROCESSES, Survey
from .values import Try, parse_try, resolved, shown

__all__ = ["run_survey"]


class _Surveyor:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.args: list[str] = spec["args"]
        self.wanted = [parse_try(t) for t in spec["wanted"]]
        self.flags: list[dict[str, Any]] = []
        self.files: list[str] = []
        self.complaints: dict[str, str] = {}
        self.has_parser = False

    def stop(self, where: str) -> None:
        found = Survey(
            flags=tuple(self.flags or typed_flags(self.args)),
            files=tuple(self.files),
            modules=tuple(own_modules()),
            has_parser=self.has_parser,
            has_accelerator=has_accelerator(),
            stopped_at=where,
            complaints=self.complaints,
        )
        finish(self.spec["folder"], to_plain(found))

    def note_file(self, path: str) -> None:
        if path.endswith(SUFFIXES[:-1]) and path not in self.files and not _is_library(path):
            self.files.append(path)

    def watch_parser(self) -> None:
        parser = argparse.ArgumentParser
        _patch(parser, "parse_known_args", "the script's options are noted", _parse, self)

    def saw_parser(self, parser: Any, found: Any, parse: Callable[[list[str]], Any]) -> None:
        """Called when the script has parsed its command line."""
        self.has_parser = True
        self.flags += describe_parser(parser, found)
        self._ask(parse)
        if self.wanted and all(self._is_settled(t) for t in self.wanted):
            self.stop("arguments")

    def _is_settled(self, wanted: Try) -> bool:
        flag = find_flag(self.flags, wanted.key)
        return flag is not None and (wanted.factor is None or flag["current"] is not None)

    def _ask(self, parse: Any) -> None:
        """Whether the parser accepts the requested values."""
        for wanted in self.wanted:
            flag = find_flag(self.flags, wanted.key)
            if flag is None:
                continue
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    parse(changed(self.args, flag, wanted.key, _value(wanted, flag)))
            except SystemExit:
                lines = said.getvalue().strip().splitlines() or ["rejected"]
                self.complaints[wanted.text] = lines[-1].partition("error: ")[2] or lines[-1]
            except UsageError as e:
                if wanted.factor is None:  # else it is not set, and another place may have it
                    self.complaints[wanted.text] = str(e)

    def watch_training(self) -> None:
        for owner, name, where in _BEGINNINGS:
            _patch(owner, name, "a training begins here", _stop, (self, where))
        register_module_forward_pre_hook(lambda *args: self.stop("first forward"))
        _patch(BaseProcess, "start", "a training may begin in a process", _start, self)


_BEGINNINGS: tuple[tuple[Any, str, str], ...] = (
    (DataLoader, "__iter__", "first batch"),
    (torch.autograd, "backward", "first backward"),
    (Optimizer, "zero_grad", "first step"),
)


def _patch(owner: Any, name: str, reason: str, make: Any, subscriber: Any) -> None:
    """Patch until the process ends."""
    subscribe(Target(owner, name, reason, "ladder"), make, subscriber)


def _parse(original: Any, subscribers: Subscribers) -> Any:
    def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        found = original(parser, args, namespace)
        if args is None or list(args) == sys.argv[1:]:
            for surveyor in subscribers:
                surveyor.saw_parser(parser, found[0], lambda words: original(parser, words))
        return found

    return parse_known_args


def _stop(original: Any, subscribers: Subscribers) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        for surveyor, where in subscribers:
            surveyor.stop(where)
        return original(*args, **kwargs)

    return call


def _start(original: Any, subscribers: Subscribers) -> Any:
    def start(process: Any) -> None:
        for surveyor in subscribers:
            if trains(process._target):
                surveyor.stop(PROCESSES)
        original(process)

    return start


def _value(wanted: Try, flag: dict[str, Any]) -> str:
    return shown(resolved(wanted, flag["current"])) if wanted.factor is not None else wanted.value


def own_modules() -> list[str]:
    """The script's own Python files: imported files that are not libraries; the script last."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file == main:
            continue
        path = os.path.abspath(file)
        if os.path.isfile(path) and not _is_library(path) and not path.startswith(own + os.sep):
            found.append(path)
    return [*dict.fromkeys(found), *([os.path.abspath(main)] if main else [])]


def _is_library(path: str) -> bool:
    places = [sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(path.startswith(p + os.sep) for p in places) or "site-packages" in path


def run_survey(spec: dict[str, Any]) -> int:
    """Run the script as far as needed; the result is a `Survey`."""
    surveyor = _Surveyor(spec)
    prepare(spec)["files"].on_read = surveyor.note_file
    surveyor.watch_parser()
    surveyor.watch_training()
    run = run_module_as_main if spec["is_module"] else run_path_as_main
    run(spec["target"], spec["args"])
    surveyor.stop("end")
    return 0
