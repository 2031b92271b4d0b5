"""Computes a part in float32 if half precision is not enough."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, dotted, is_namespace, name_of, stands_alone, with_method
from .source import Source

__all__: list[str] = []


def _tensors(source: Source, statement: ast.stmt) -> list[ast.Name]:
    """Names in a statement that may be tensors: parameters and variables of the function, but not functions, indices or
    dimension names.
    """
    scope = source.scope(statement)
    own = source.parameters(scope) - {"self", "cls"}
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    found = []
    for node in ast.walk(statement):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in own and not _is_index_or_setting(source, node, statement):
            found.append(node)
    return found


_SETTINGS = (
    "eps",
    "dim",
    "temperature",
    "margin",
    "alpha",
    "beta",
    "gamma",
    "scale",
    "weight_decay",
)


_PLAIN = ("len", "range", "int", "float", "max", "min", "enumerate", "zip", "isinstance", "str")
_INDEXING = ("view", "reshape", "gather", "index_select", "expand", "repeat", "transpose", "permute",
             "size", "unsqueeze", "squeeze", "embedding", "scatter", "index_add")  # fmt: skip


def _is_index_or_setting(source: Source, node: ast.Name, statement: ast.stmt) -> bool:
    if node.id.lower() in _SETTINGS or node.id.isupper():
        return True
    at: ast.AST = node
    while at is not statement:
        above = source.parent(at)
        if above is None:
            return True
        if isinstance(above, ast.Subscript) and above.slice is at:
            return True
        if isinstance(above, (ast.keyword, ast.Compare)):
            return True
        if isinstance(above, ast.Call):
            if above.func is node:
                return True
            if at in above.args and dotted(above.func) in _PLAIN:
                return True
            if at in above.args and getattr(above.func, "attr", "") in _INDEXING:
                return True
        if isinstance(above, ast.Attribute) and above.attr in ("shape", "dtype", "device", "size"):
            return True
        at = above
    return False


def _widened(source: Source, statement: ast.stmt) -> list[Edit]:
    edits = []
    for name in _tensors(source, statement):
        end = source.span(name)[1]
        edits.append(Edit(end, end, ".float()"))
    return edits


@pattern(
    "float32_line",
    "compute this line in float32",
    "half precision rounds away or overflows what float32 holds",
)
def float32_line(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, (ast.Assign, ast.Return, ast.Expr, ast.AugAssign)):
        return None
    return _widened(source, node) or None


_OPERATORS: dict[str, tuple[type[ast.operator], ...]] = {
    "mul": (ast.Mult,), "add": (ast.Add,), "sub": (ast.Sub,), "div": (ast.Div,), "pow": (ast.Pow,),
    **dict.fromkeys(("mm", "bmm", "matmul", "addmm", "baddbmm", "mv", "dot"), (ast.MatMult,)),
}  # fmt: skip
_PRODUCTS = (
    "matmul",
    "bmm",
    "mm",
    "einsum",
    "dot",
    "mv",
    "baddbmm",
    "addmm",
    "linear",
    "conv1d",
    "conv2d",
)


def _operands(node: ast.AST) -> list[ast.expr]:
    """The operands of an operator or a function of torch that may be tensors."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    found = call(node)
    if found is None or not isinstance(node, ast.Call):
        return []
    is_function = isinstance(node.func, ast.Attribute) and is_namespace(node.func.value)
    return [found[1], *(found[2] if is_function else ())]


def _is_widened(operand: ast.expr) -> bool:
    return not isinstance(operand, (ast.Constant, ast.Tuple, ast.List, ast.UnaryOp, ast.Starred))


@pattern(
    "float32_operands",
    "compute this operation in float32",
    "half precision rounds away or overflows what float32 holds",
)
def float32_operands(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, (ast.BinOp, ast.Call)) or source.kernel == "":
        return None
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, _OPERATORS.get(source.kernel, ())):
            return None
    else:
        name = getattr(node.func, "attr", "")
        is_product = name in _PRODUCTS and source.kernel in (
            "mm",
            "bmm",
            "addmm",
            "mv",
            "dot",
            "baddbmm",
        )
        if (
            source.kernel.lstrip("_") not in (name, f"{name}_loss", f"linalg_{name}")
            and not is_product
        ):
            return None
    edits: list[Edit] = []
    for operand in _operands(node):
        if _is_widened(operand):
            edits += with_method(source, operand, ".float()")
    return edits or None


@pattern(
    "float32_block",
    "compute this line in float32, with autocast off",
    "under autocast a matrix product is computed in half precision whatever it is given",
)
def float32_block(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if not isinstance(node, (ast.Assign, ast.Return, ast.Expr, ast.AugAssign)) or torch is None:
        return None
    if not stands_alone(source, node):
        return None
    tensors = _tensors(source, node)
    if not tensors:
        return None
    device = f"{tensors[0].id}.device.type"
    indent, newline = source.indent(node), source.newline
    start = source.line_start(node.lineno)
    edits = [
        Edit(start, start, f"{indent}with {torch}.autocast({device}, enabled=False):{newline}    ")
    ]
    for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1):
        first = source.line_start(line)
        edits.append(Edit(first, first, "    "))
    return [*edits, *_widened(source, node)]


@pattern(
    "float32_function",
    "compute this function in float32: widen what it is given",
    "what half precision rounds away inside of it is then kept",
)
def float32_function(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    used = {n.id for s in node.body for t in _statements(s) for n in _tensors(source, t)}
    args = [a.arg for a in node.args.args if a.arg in used]
    body = node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if not args or not body or not stands_alone(source, body[0]):
        return None
    left, right = ", ".join(args), ", ".join(f"{a}.float()" for a in args)
    start = source.line_start(body[0].lineno)
    return [Edit(start, start, f"{source.indent(body[0])}{left} = {right}{source.newline}")]


def _statements(statement: ast.stmt) -> list[ast.stmt]:
    return [n for n in ast.walk(statement)
            if isinstance(n, (ast.Assign, ast.Return, ast.Expr, ast.AugAssign))]  # fmt: skip


def _back(source: Source, node: ast.stmt) -> list[Edit] | None:
    """Convert the result to the dtype of the first tensor of the line."""
    value = getattr(node, "value", None)
    tensors = _tensors(source, node)
    if not tensors or not isinstance(value, ast.expr) or isinstance(value, ast.Tuple):
        return None
    return with_method(source, value, f".to({tensors[0].id}.dtype)")


@pattern(
    "float32_line_back",
    "compute this line in float32 and go back afterwards",
    "what lies between overflows or rounds away in half precision; the result fits",
)
def float32_line_back(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, (ast.Assign, ast.Return)):
        return None
    back = _back(source, node)
    return None if back is None else _joined([*_widened(source, node), *back])


def _joined(edits: list[Edit]) -> list[Edit]:
    """Merge two insertions at one place, in order."""
    by_place: dict[tuple[int, int], str] = {}
    for edit in edits:
        key = (edit.start, edit.end)
        by_place[key] = by_place.get(key, "") + edit.text
    return [Edit(*key, text) for key, text in by_place.items()]


@pattern(
    "float32_body",
    "compute this function in float32, with autocast off",
    "under autocast its products are computed in half precision whatever they are given",
)
def float32_body(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if not isinstance(node, ast.FunctionDef) or torch is None:
        return None
    made = list(float32_function(source, node) or ())
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    has_text = any(
        isinstance(n, (ast.Constant, ast.JoinedStr)) and n.lineno != n.end_lineno
        for s in body
        for n in ast.walk(s)
    )
    if not made or has_text:
        return None
    name = made[0].text.split("=")[0].split(",")[0].strip()
    indent = source.indent(body[0])
    head = f"{indent}with {torch}.autocast({name}.device.type, enabled=False):{source.newline}"
    edits = [Edit(made[0].start, made[0].end, f"{head}    {made[0].text}    ")]
    for line in range(body[0].lineno + 1, (node.end_lineno or 0) + 1):
        start = source.line_start(line)
        if source.lines[line - 1].strip():
            edits.append(Edit(start, start, "    "))
    return edits
