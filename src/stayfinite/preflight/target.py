"""Resolves the target of `stayfinite check`: a script, a module, or `pkg.module:build`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .target_names import nearest_script, require_module

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["BuildTarget", "Built", "ScriptTarget", "load_build", "parse_target", "understand"]

_NAMES = ("model", "loss_fn", "loader", "optimizer")
_OPTIONAL = ("scheduler", "scaler", "clip_norm")
_EXPECTED = (
    "expected model, loss_fn, loader, optimizer (a tuple in this order, or a dict with these keys; "
    "a dict may also have scheduler, scaler, clip_norm)"
)


@dataclass(frozen=True)
class ScriptTarget:
    """A script (or a module, as `python -m`) with its own arguments."""

    name: str
    args: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def label(self) -> str:
        return " ".join([f"-m {self.name}" if self.is_module else self.name, *self.args])


@dataclass(frozen=True)
class BuildTarget:
    """A function that makes the training: `pkg.module:build` or `path/to/file.py:build`."""

    home: str
    function: str

    @property
    def label(self) -> str:
        return f"{self.home}:{self.function}"


@dataclass
class Built:
    """A training in parts."""

    model: nn.Module
    loss_fn: Callable[[nn.Module, Any], Any]
    loader: Iterable[Any]
    optimizers: list[Optimizer]
    scheduler: Any = None
    scaler: Any = None
    clip_norm: float | None = None


def parse_target(words: list[str], module: str | None = None) -> ScriptTarget | BuildTarget:
    """Parse the target on the command line.

    >>> parse_target(["--lr", "1"], module="json.tool")
    ScriptTarget(name='json.tool', args=('--lr', '1'), is_module=True)
    >>> parse_target(["pkg.train:build"])
    BuildTarget(home='pkg.train', function='build')
    """
    if module is not None:
        require_module(module)
        return ScriptTarget(module, tuple(words), is_module=True)
    if not words:
        raise UsageError(
            "no target\ntry: stayfinite check train.py [ARGS]…, or stayfinite check pkg.module:build"
        )
    first, rest = words[0], words[1:]
    home, colon, function = first.rpartition(":")
    if colon and home and function.isidentifier() and not Path(first).exists():
        if rest:
            raise UsageError(
                f"{first}: a build function takes no arguments, got {' '.join(rest)}\n"
                "try: stayfinite's own options go before the target"
            )
        return BuildTarget(home, function)
    if not Path(first).is_file():
        what = "is a folder" if Path(first).is_dir() else "is no file"
        raise UsageError(
            f"target {first!r} {what}; expected a script (train.py) or a function "
            f"(pkg.module:build, path/to/file.py:build){nearest_script(first)}"
        )
    return ScriptTarget(first, tuple(rest))


def load_build(target: BuildTarget) -> Built:
    """Import the module, call the function, and interpret its result."""
    module = _import(target)
    function = getattr(module, target.function, None)
    if function is None:
        found = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        own = [n for n in found if getattr(vars(module)[n], "__module__", "") == module.__name__]
        raise UsageError(
            f"{target.home} has no {target.function!r}; functions there: {', '.join(own) or 'none'}"
        )
    if not callable(function):
        raise UsageError(f"{target.label} is {_a(function)}, expected a function without arguments")
    try:
        result = function()
    except Exception as e:
        raise UsageError(f"{target.label} raised {_in_words(e)}") from e
    return understand(result, target.label)


def _import(target: BuildTarget) -> Any:
    """A dotted name, or a path to a file; the working directory is searched first."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    is_path = target.home.endswith(".py")
    if is_path and not Path(target.home).is_file():
        raise UsageError(f"target {target.label!r}: there is no file {target.home}")
    try:
        if not is_path:
            return importlib.import_module(target.home)
        path = Path(target.home).resolve()
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as e:
        if e.name and target.home.split(".")[: len(e.name.split("."))] == e.name.split("."):
            raise UsageError(
                f"target {target.label!r}: no module named {e.name!r} in {Path.cwd()} or on the "
                "Python path\ntry: run it from the folder that holds it, or give the file: "
                f"path/to/file.py:{target.function}"
            ) from e
        raise UsageError(f"importing {target.home} raised {_in_words(e)}") from e
    except (Exception, SystemExit) as e:
        raise UsageError(f"importing {target.home} raised {_in_words(e)}") from e


def _in_words(e: BaseException) -> str:
    """Type, text and place of an exception, in one line."""
    if isinstance(e, SyntaxError) and e.filename:
        return f"SyntaxError: {e.msg} ({e.filename}:{e.lineno})"
    walked = traceback.extract_tb(e.__traceback__)
    frames = [f for f in walked if "importlib" not in f.filename and __file__ != f.filename]
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(e).__name__}: {e}{at}"


def understand(result: Any, label: str = "build") -> Built:
    """The parts of a training from the result of a build function; all errors are reported together."""
    from torch import nn
    from torch.optim import Optimizer

    parts = _parts(result, label)
    problems = []
    if not isinstance(parts["model"], nn.Module):
        problems.append(f"model must be a torch.nn.Module, got {_a(parts['model'])}")
    if not callable(parts["loss_fn"]):
        problems.append(
            f"loss_fn must be a function loss_fn(model, batch) -> loss, got {_a(parts['loss_fn'])}"
        )
    if not isinstance(parts["loader"], Iterable):
        problems.append(f"loader must be iterable (a DataLoader), got {_a(parts['loader'])}")
    optimizer = parts["optimizer"]
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        problems.append(
            f"optimizer must be a torch.optim.Optimizer (or a list of them), got {_a(optimizer)}"
        )
    clip = parts.get("clip_norm")
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float))):
        problems.append(f"clip_norm must be a number or None, got {_a(clip)}")
    if problems:
        raise UsageError("\n  - ".join([f"{label} returned something else:", *problems]))
    return Built(
        model=parts["model"], loss_fn=parts["loss_fn"], loader=parts["loader"],
        optimizers=optimizers, scheduler=parts.get("scheduler"), scaler=parts.get("scaler"),
        clip_norm=clip,
    )  # fmt: skip


def _parts(result: Any, label: str) -> dict[str, Any]:
    if isinstance(result, Built):
        return {**vars(result), "optimizer": result.optimizers}
    if isinstance(result, Mapping):
        missing = [n for n in _NAMES if n not in result]
        unknown = [str(n) for n in result if n not in (*_NAMES, *_OPTIONAL)]
        if missing or unknown:
            wrong = [f"without {', '.join(missing)}"] if missing else []
            wrong += [f"with the unknown {', '.join(unknown)}"] if unknown else []
            raise UsageError(f"{label} returned a dict {' and '.join(wrong)}; {_EXPECTED}")
        return dict(result)
    if not isinstance(result, (tuple, list)):
        raise UsageError(f"{label} returned {_a(result)}; {_EXPECTED}")
    if len(result) != len(_NAMES):
        kinds = ", ".join(type(v).__name__ for v in result)
        raise UsageError(f"{label} returned {len(result)} values ({kinds}); {_EXPECTED}")
    return dict(zip(_NAMES, result))


def _a(value: Any) -> str:
    """What something is, in words."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
