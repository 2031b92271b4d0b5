"""Splits a command line into our own options and those of the script."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["ScriptCommand", "end_ours"]

_MODULE = ("-m", "--module")


class ScriptCommand(TyperCommand):
    """A command that runs a script: what follows `-m MODULE` is the module's own, as for `python`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [p for p in self.params if p.param_type_name == "option"]
        valued = {o for p in options if not getattr(p, "is_flag", False) for o in p.opts}
        return super().parse_args(ctx, end_ours(args, valued))


def end_ours(args: list[str], valued: set[str]) -> list[str]:
    """Put `--` behind `-m MODULE`; `valued` are the options that take a value.

    >>> end_ours(["--only", "data", "-m", "pkg.train", "--lr", "3"], {"--only", "-m"})
    ['--only', 'data', '-m', 'pkg.train', '--', '--lr', '3']
    >>> end_ours(["train.py", "-m", "3"], {"-m"})
    ['train.py', '-m', '3']
    """
    i = 0
    while i < len(args):
        word = args[i]
        if word == "--" or not word.startswith("-"):
            return args
        if word in _MODULE:
            return [*args[: i + 2], "--", *args[i + 2 :]]
        if word.startswith("--module=") or (word.startswith("-m") and word not in valued):
            return [*args[: i + 1], "--", *args[i + 1 :]]
        i += 2 if word in valued else 1
    return args
