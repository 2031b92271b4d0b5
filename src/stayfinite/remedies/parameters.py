"""Tensors that were meant as weights: `torch.rand(..., requires_grad=True)` in a module becomes an `nn.Parameter`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .edits import Edit, Remedy
from .matching import dotted, name_of
from .source import Source

__all__ = ["as_parameters"]

_RANDOM = ("rand", "randn")
_MADE = (*_RANDOM, "zeros", "ones", "empty", "full", "normal", "tensor")
_WHY = (
    "no optimizer moves a plain tensor, and `.to()` and `state_dict()` do not see it; a parameter is trained, "
    "moved and saved"
)


def as_parameters(
    source: Source, owners: Iterable[tuple[str, str]], is_fresh: bool = False
) -> Remedy | None:
    """Make attributes (class, name) parameters; None if a line that sets one of them has another form.

    `is_fresh`: use the initialization of a weight instead of the given random numbers, for matrices.

    >>> text = "class M(nn.Module):\\n    def __init__(self):\\n        self.w = torch.rand(2, 3, requires_grad=True)\\n"
    >>> s = Source("import torch\\nfrom torch import nn\\n" + text)
    >>> [e.text for e in as_parameters(s, [("M", "w")]).edits]
    ['nn.Parameter(torch.rand(2, 3))']
    >>> [e.text for e in as_parameters(s, [("M", "w")], is_fresh=True).edits]
    ['nn.Parameter(nn.init.xavier_normal_(torch.empty(2, 3)))']
    """
    home = name_of(source, "torch.nn") or (name_of(source, "torch") and "torch.nn")
    lines: list[int] = []
    edits: list[Edit] = []
    names: list[str] = []
    for owner, name in dict.fromkeys(owners):
        values = _values(source, owner, name)
        made = [_parameter(source, v, str(home), is_fresh) for v in values]
        if home is None or not made or None in made:
            return None
        edits += [Edit(*source.span(v), text) for v, text in zip(values, made) if text is not None]
        lines += [v.lineno for v in values]
        names.append(name)
    if not edits:
        return None
    start = ", started like a weight" if is_fresh else ""
    return Remedy(
        name="start_parameter" if is_fresh else "as_parameter",
        title=f"make {' and '.join(names)} nn.Parameter{start}",
        why=_WHY, line=min(lines), edits=tuple(sorted(edits)), is_equivalent=False,
    )  # fmt: skip


def _values(source: Source, owner: str, name: str) -> list[ast.expr]:
    """The assignments to this attribute in the class."""
    found = []
    for cls in ast.walk(source.tree):
        if isinstance(cls, ast.ClassDef) and cls.name == owner:
            for node in ast.walk(cls):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if isinstance(node, ast.AnnAssign) and node.value is not None:
                    targets = [node.target]
                if any(dotted(t) == f"self.{name}" for t in targets):
                    assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
                    found.append(node.value)
    return found


def _parameter(source: Source, value: ast.expr, home: str, is_fresh: bool) -> str | None:
    """The same numbers, or an initialization for them, as a parameter."""
    if not isinstance(value, ast.Call) or dotted(value.func).partition(".")[0] != "torch":
        return None
    kind = dotted(value.func).removeprefix("torch.")
    wants = [k for k in value.keywords if k.arg == "requires_grad"]
    is_true = len(wants) == 1 and isinstance(wants[0].value, ast.Constant) and wants[0].value.value
    if kind not in _MADE or not is_true:
        return None
    others = [k for k in value.keywords if k.arg != "requires_grad"]
    if not is_fresh:
        given = ", ".join(source.text_of(a) for a in (*value.args, *others))
        return f"{home}.Parameter(torch.{kind}({given}))"
    if kind not in _RANDOM or not _is_matrix(value):
        return None
    given = ", ".join(source.text_of(a) for a in (*value.args, *others) if _is_kept(a))
    return f"{home}.Parameter({home}.init.xavier_normal_(torch.empty({given})))"


def _is_kept(argument: ast.AST) -> bool:
    """`empty` draws no random numbers."""
    return not isinstance(argument, ast.keyword) or argument.arg != "generator"


def _is_matrix(call: ast.Call) -> bool:
    """Whether two or more sizes are given."""
    sizes = call.args
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return len(sizes) >= 2 and not any(isinstance(s, ast.Starred) for s in sizes)
