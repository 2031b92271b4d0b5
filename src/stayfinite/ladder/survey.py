"""What a script has that could be changed, found without training.

The script runs until it asks for its first batch, calls a model, or is at its end: by then it has
parsed its arguments and read its config.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import runpy
import sys
import sysconfig
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..runtime.spawned import trains
from ..errors import UsageError
from ..records import to_plain
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
            has_cuda=torch.cuda.is_available(),
            stopped_at=where,
            complaints=self.complaints,
        )
        finish(self.spec["folder"], to_plain(found))

    def note_file(self, path: str) -> None:
        if path.endswith(SUFFIXES[:-1]) and path not in self.files and not _is_library(path):
            self.files.append(path)

    def watch_parser(self) -> None:
        original = argparse.ArgumentParser.parse_known_args

        def parse_known_args(
            parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None
        ) -> Any:
            found = original(parser, args, namespace)
            if args is None or list(args) == sys.argv[1:]:
                self.has_parser = True
                self.flags += describe_parser(parser, found[0])
                self._ask(lambda words: original(parser, words))
                if self.wanted and all(self._is_settled(t) for t in self.wanted):
                    self.stop("arguments")
            return found

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore

    def _is_settled(self, wanted: Try) -> bool:
        flag = find_flag(self.flags, wanted.key)
        return flag is not None and (wanted.factor is None or flag["current"] is not None)

    def _ask(self, parse: Any) -> None:
        """Whether the parser would take the values that are wanted."""
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
        def at(where: str) -> Any:
            return lambda *args, **kwargs: self.stop(where)

        DataLoader.__iter__ = at("first batch")  # type: ignore[method-assign]
        Tensor.backward = at("first backward")  # type: ignore[method-assign]
        torch.autograd.backward = at("first backward")
        Optimizer.zero_grad = at("first step")  # type: ignore[method-assign]
        register_module_forward_pre_hook(at("first forward"))
        start = BaseProcess.start

        def start_or_stop(process: Any) -> None:
            if trains(process._target):
                self.stop(PROCESSES)
            start(process)

        BaseProcess.start = start_or_stop  # type: ignore[assignment]


def _value(wanted: Try, flag: dict[str, Any]) -> str:
    return shown(resolved(wanted, flag["current"])) if wanted.factor is not None else wanted.value


def own_modules() -> list[str]:
    """The script's own Python files: what was imported and is no library; the script last."""
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
    """Run the script as far as it takes; the answer is a `Survey`."""
    surveyor = _Surveyor(spec)
    prepare(spec)["files"].on_read = surveyor.note_file
    surveyor.watch_parser()
    surveyor.watch_training()
    target = spec["target"]
    sys.argv = [target, *spec["args"]]
    if spec["is_module"]:
        sys.path[0] = os.getcwd()
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")
    surveyor.stop("end")
    return 0
