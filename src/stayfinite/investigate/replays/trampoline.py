"""Makes code that calls another function with the same arguments and signature."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable

__all__ = ["trampoline"]

_VARARGS, _KEYWORDS = 0x04, 0x08
_CHOOSE = "__stayfinite_choose__"
_MARK = "stayfinite: the function to call"


def trampoline(code: types.CodeType, choose: Callable[[], Callable[..., object]]) -> types.CodeType:
    """Code that gets a function from `choose` and calls it; to be installed in a function with the code `code`."""
    tree = ast.parse(_text(code))
    compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType))
    constants = tuple(choose if c == _MARK else c for c in inner.co_consts)
    return inner.replace(
        co_consts=constants,
        co_name=code.co_name,
        co_firstlineno=code.co_firstlineno,
        co_filename=code.co_filename,
    )


def _text(code: types.CodeType) -> str:
    positional = code.co_argcount
    named = code.co_kwonlyargcount
    names = list(code.co_varnames)
    plain, keywords = names[:positional], names[positional : positional + named]
    rest = names[positional + named :]
    stars = rest.pop(0) if code.co_flags & _VARARGS else None
    double = rest.pop(0) if code.co_flags & _KEYWORDS else None
    taken = [*plain[: code.co_posonlyargcount], *(["/"] if code.co_posonlyargcount else [])]
    taken += plain[code.co_posonlyargcount :]
    if stars is not None or keywords:
        taken.append(f"*{stars or ''}")
    taken += [*keywords, *([f"**{double}"] if double else [])]
    given = [*plain, *([f"*{stars}"] if stars else []), *(f"{n}={n}" for n in keywords)]
    given += [f"**{double}"] if double else []
    cells = ", ".join(code.co_freevars)
    dead = f"        if 0: ({cells},)\n" if cells else ""
    return (
        f"def outer({cells}):\n    def inner({', '.join(taken)}):\n{dead}"
        f"        {_CHOOSE} = {_MARK!r}\n        return {_CHOOSE}()({', '.join(given)})\n"
    )
