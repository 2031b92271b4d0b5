"""The broken trainings of `stayfinite demo`: one built in, the others from `examples/`."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError

__all__ = ["Case", "cases", "examples_folder", "find"]

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One broken training, its repaired twin, and what is to be found."""

    name: str
    title: str
    script: Path
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of `stayfinite run`, where its defaults are not the remedy."""
    fixed: Path
    fixed_args: tuple[str, ...] = ()
    cause: str
    """The cause that the incident must name."""
    line: str
    """A part of the source line that the incident must blame."""
    metric: str
    """What the last line of the repaired training must show, as a regular expression."""
    looks: tuple[tuple[str, ...], ...] = field(default=())
    """Commands of stayfinite for what the plain run left behind, such as `scan results`."""

    def sources(self) -> list[Path]:
        """The files that a run needs beside it."""
        if self.script.name != "train.py":
            return [self.script, self.fixed]
        return [p for p in sorted(self.script.parent.iterdir()) if p.is_file()]

    def missing(self) -> list[str]:
        """Packages that its scripts import and that are not installed."""
        own = {p.stem for p in self.sources()}
        wanted: set[str] = set()
        for path in self.sources():
            if path.suffix != ".py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    wanted.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    wanted.add(node.module.partition(".")[0])
        return [n for n in sorted(wanted - own) if importlib.util.find_spec(n) is None]


def cases() -> dict[str, Case]:
    """All cases by name, the shortest first.

    >>> next(iter(cases()))
    'attention'
    """
    found = {"attention": _attention()}
    folder = examples_folder()
    if folder is not None:
        for path in sorted(folder.glob("*/demo.yaml")):
            found[path.parent.name] = read_case(path)
    return found


def find(name: str) -> Case:
    """The case of that name.

    >>> find("elephant")
    Traceback (most recent call last):
    stayfinite.errors.UsageError: unknown demo 'elephant'; choose one of: attention...
    """
    known = cases()
    if name not in known:
        raise UsageError(f"unknown demo {name!r}; choose one of: {', '.join(known)}")
    return known[name]


def examples_folder() -> Path | None:
    """Where the examples are: inside the package of a wheel, or beside `src` in a clone."""
    for folder in (_PACKAGE / "examples", _PACKAGE.parents[1] / "examples"):
        if any(folder.glob("*/demo.yaml")):
            return folder
    return None


def read_case(path: Path) -> Case:
    """The case that a `demo.yaml` describes; every problem of the file at once."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))  # type: ignore[no-untyped-call]
    except yaml.YAMLError as e:
        raise UsageError(f"{path} is not YAML: {e}") from e
    problems = list(_problems(data, path.parent))
    if problems:
        raise UsageError("\n  - ".join([f"{path}: {len(problems)} problems", *problems]))
    fixed, expect = data["fixed"], data["expect"]
    return Case(
        name=path.parent.name,
        title=data["title"].strip(),
        script=path.parent / "train.py",
        args=_words(data.get("plain")),
        options=_words(data.get("options")),
        fixed=path.parent / fixed["script"],
        fixed_args=_words(fixed.get("args")),
        cause=expect["cause"],
        line=expect["line"],
        metric=data["metric"],
        looks=tuple(_words(words) for words in data.get("looks") or ()),
    )


def _words(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values or ())


def _problems(data: Any, folder: Path) -> list[str]:
    if not isinstance(data, dict):
        return ["a mapping is wanted"]
    found = []
    unknown = set(data) - {"title", "plain", "fixed", "expect", "metric", "looks", "options"}
    found += [f"unknown key {key!r}" for key in sorted(unknown, key=str)]
    fixed, expect = (data.get(key) or {} for key in ("fixed", "expect"))
    for name, value in (
        ("title", data.get("title")),
        ("metric", data.get("metric")),
        ("fixed.script", fixed.get("script")),
        ("expect.cause", expect.get("cause")),
        ("expect.line", expect.get("line")),
    ):
        if not isinstance(value, str) or not value.strip():
            found.append(f"`{name}` must be text, got {value!r}")
    found += _pattern_problems(data.get("metric"))
    for script in ("train.py", fixed.get("script")):
        if isinstance(script, str) and not (folder / script).is_file():
            found.append(f"there is no {script} beside it")
    return found


def _pattern_problems(metric: Any) -> list[str]:
    try:
        re.compile(metric if isinstance(metric, str) else "")
    except re.error as e:
        return [f"`metric` is no regular expression: {e}"]
    return []


def _attention() -> Case:
    here = Path(__file__).parent
    return Case(
        name="attention",
        title="Text classifier with hand-written attention; one document is empty.",
        script=here / "attention.py",
        fixed=here / "attention_fixed.py",
        cause="fully_masked_row",
        line="F.softmax(scores, dim=-1)",
        metric=r"accuracy (0\.9|1\.0)",
    )
