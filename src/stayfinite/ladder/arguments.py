"""A script's arguments with one flag changed.

A flag is a plain dict, so that it can be sent between processes: `strings` (`["-l", "--lr"]`), `dest`, `kind` (value | many | on |
off | both | token), `current`, `is_first` (must be before a subcommand).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UsageError
from .values import as_switch, normal, parse_value

__all__ = ["changed", "describe_parser", "find_flag", "typed_flags"]

Flag = dict[str, Any]


def describe_parser(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> list[Flag]:
    """All flags that the script accepts, with their current values."""
    flags: list[Flag] = []
    has_commands = any(isinstance(a, argparse._SubParsersAction) for a in parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(getattr(namespace, action.dest, None) or "")
            if chosen is not None:
                flags += describe_parser(chosen, namespace)
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            flags.append(
                {
                    "strings": list(action.option_strings),
                    "dest": action.dest,
                    "kind": _kind(action),
                    "current": _plain(getattr(namespace, action.dest, None)),
                    "is_first": has_commands,
                }
            )
    return flags


def _kind(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "both"
    if action.nargs == 0:
        return "off" if getattr(action, "const", None) is False else "on"
    return "value" if action.nargs in (None, "?") else "many"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else str(value)


def typed_flags(args: Sequence[str]) -> list[Flag]:
    """Flags among the arguments, for scripts that do not use argparse.

    >>> flags = typed_flags(["optim.eps=1e-8", "--lr", "0.1", "--amp"])
    >>> [(f["dest"], f["kind"], f["current"]) for f in flags]
    [('optim.eps', 'token', 1e-08), ('lr', 'value', 0.1), ('amp', 'on', True)]
    """
    flags: list[Flag] = []
    for i, arg in enumerate(args):
        name, sign, value = arg.partition("=")
        if arg == "--":
            break
        if arg.startswith("--"):
            follows = args[i + 1] if i + 1 < len(args) else "-"
            if sign:
                kind, current = "value", parse_value(value)
            elif _is_value(follows):
                kind, current = "value", parse_value(follows)
            else:
                kind, current = "on", True
            flags.append(
                {"strings": [name], "dest": normal(name), "kind": kind, "current": current}
            )
        elif sign and name.lstrip("+").replace(".", "").replace("_", "").isalnum():
            flags.append(
                {"strings": [name], "dest": name.lstrip("+"), "kind": "token",
                 "current": parse_value(value)}
            )  # fmt: skip
    return flags


def _is_value(arg: str) -> bool:
    return not arg.startswith("-") or arg[1:2].isdigit() or arg[1:2] == "."


def find_flag(flags: Iterable[Flag], key: str) -> Flag | None:
    """The flag of that name: its option, or its destination in the script."""
    wanted = normal(key)
    for flag in flags:
        if wanted in [normal(s) for s in flag["strings"]] or wanted == normal(flag["dest"]):
            return flag
    return None


def changed(args: Sequence[str], flag: Flag, key: str, text: str) -> list[str]:
    """The arguments with this flag set to this value.

    >>> lr = {"strings": ["-l", "--lr"], "dest": "lr", "kind": "value"}
    >>> changed(["data", "-l", "0.1"], lr, "lr", "0.01"), changed(["data"], lr, "lr", "0.01")
    (['data', '-l', '0.01'], ['data', '--lr', '0.01'])
    >>> amp = {"strings": ["--amp"], "dest": "amp", "kind": "on"}
    >>> changed(["--amp", "data"], amp, "amp", "false")
    ['data']
    """
    kind = flag["kind"]
    long = max(flag["strings"], key=len)
    if kind == "token":
        return [f"{long}={text}" if a.partition("=")[0] == long else a for a in args]
    if kind in ("on", "off", "both"):
        value = as_switch(text)
        if value is None:
            raise UsageError(f"{long} is a switch: give true or false, got {text!r}")
        if kind == "both":
            return _with(_without(args, flag), flag, [_polar(flag, value)])
        is_named = normal(key) in [normal(s) for s in flag["strings"]]
        is_wanted = value if kind == "on" or is_named else not value
        rest = _without(args, flag)
        return _with(rest, flag, [long]) if is_wanted else rest
    texts = text.split(",") if kind == "many" else [text]
    there = _replaced(list(args), flag, texts, is_many=kind == "many")
    return there or _with(args, flag, [long, *texts])


def _polar(flag: Flag, value: bool) -> str:
    long = [s for s in flag["strings"] if s.startswith("--")]
    return str(next(s for s in long if s.startswith("--no-") != value))


def _without(args: Sequence[str], flag: Flag) -> list[str]:
    return [a for a in args if a not in flag["strings"]]


def _with(args: Sequence[str], flag: Flag, words: list[str]) -> list[str]:
    """After all others, but before a `--` that ends the options."""
    if flag.get("is_first"):
        return [*words, *args]
    end = args.index("--") if "--" in args else len(args)
    return [*args[:end], *words, *args[end:]]


def _replaced(args: list[str], flag: Flag, texts: list[str], is_many: bool) -> list[str]:
    """The arguments with the last occurrence of the flag replaced; [] if it does not occur."""
    for i in range(len(args) - 1, -1, -1):
        name, sign, _ = args[i].partition("=")
        if name not in flag["strings"]:
            continue
        if sign and not is_many:
            return [*args[:i], f"{name}={texts[0]}", *args[i + 1 :]]
        end = i + 2
        while is_many and end < len(args) and _is_value(args[end]):
            end += 1
        return [*args[:i], name, *texts, *args[end:]]
    return []
