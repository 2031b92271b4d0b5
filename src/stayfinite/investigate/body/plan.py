"""The statements of a body to run, compiled once, and one run of them."""

from __future__ import annotations

import ast
import functools
import types
import weakref
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Any, Protocol

from torch import Tensor

from .compiled import compile_block, compile_module
from .copies import Copier, clones
from .cut import Cut, Rules, can_strip, rebuild
from .feeds import BATCHES, Feed, take
from .home import Home
from .scene import Scene
from .source import function_source, names_of
from .summary import Functions
from .units import Unit, build_units, flat
from .values import UNKNOWN, Env, Path, Value, attribute_of, known

__all__ = ["Plan", "home_environment", "is_scalar", "object_at"]

_TAKEN = "__stayfinite_taken__"


class BodyParts(Protocol):
    """The attributes of the body that a plan uses."""

    scene: Scene
    home: Home
    functions: Functions
    units: list[Unit]
    wanted: str


class Plan:
    """The statements to run."""

    def __init__(
        self,
        body: BodyParts,
        feeds: tuple[Feed, ...],
        given: frozenset[str],
        is_new: bool,
        is_part: bool = False,
    ) -> None:
        """`given`: names of arguments that get their first value again; `is_new`: see `Rules`; `is_part`: only accumulate
        gradients, because the step comes with a later batch.
        """
        self._body: BodyParts = weakref.proxy(body)  # which holds its plans
        self._scene = body.scene
        self._feeds = feeds
        self._given = given
        self._is_part = is_part
        self._cut = Cut(body.units, self._rules(is_new))
        self._cut.solve(self._wanted())
        self._taken_names: set[str] = set()
        statements = self._statements()
        self._arguments = self._argument_names(statements)
        self.code = self._compile(statements)

    def _rules(self, is_new: bool) -> Rules:
        heads = [f for f in self._feeds if f.unit is None]
        names = {n.id for f in heads for n in ast.walk(f.target) if isinstance(n, ast.Name)}
        env = home_environment(self._scene)
        roots = frozenset(env.root(n) for n in names | self._given)
        fed = frozenset(f.unit for f in self._feeds if f.unit is not None)
        return Rules(
            roots,
            fed=fed,
            is_new=is_new,
            start=self._start(env),
            is_full=self._body.functions.is_full,
            is_loose=self._body.functions.is_loose,
            is_restored=functools.partial(_is_restored, self._body.functions, env),
        )

    def _start(self, env: Env) -> int:
        """After an earlier step of the same optimizer, whose window is closed."""
        units = list(flat(self._body.units))
        if not units or self._body.wanted or self._scene.has_left_early:
            return 0
        following = build_units(
            self._body.home.following, env, self._body.functions.judge, is_over=True
        )
        ahead = [u for u in (units[-1], *flat(following)) if u.access.is_step]
        current = ahead[0].access.optimizers if ahead else ()
        start = 0
        for unit in units[:-1]:
            if unit.access.is_step and not unit.blocks and _is_always_run(unit):
                same = [o for o in unit.access.optimizers if any(o is c for c in current)]
                if same or not current or not unit.access.optimizers:
                    start = unit.position + 1
        return start

    def _wanted(self) -> Callable[[Unit], bool]:
        units = self._cut.all
        if self._body.wanted:
            return lambda u: any(p[0].startswith(self._body.wanted) for p in u.access.binds)
        if any(u.access.is_backward for u in units[self._cut.rules.start :]):
            if self._is_part:
                return lambda u: u.access.is_backward and not u.blocks
            return lambda u: (u.access.is_training or self._is_for_gradients(u)) and not u.blocks
        current = units[-1] if units and self._scene.is_over else None
        return lambda u: self._makes_scalar(u) or (u is current and not u.is_leaving)

    def _is_for_gradients(self, unit: Unit) -> bool:
        """The script's own changes of the gradients between backward and step, in place or by a function."""
        before = [u for u in self._cut.all[: unit.position] if u.access.is_backward]
        if not before or unit.position < self._cut.rules.start:
            return False
        if any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(unit.node)):
            return True
        calls = [n.func for n in ast.walk(unit.node) if isinstance(n, ast.Call)]
        named = [self._scene.variables.get(f.id) for f in calls if isinstance(f, ast.Name)]
        return any(_names_gradients(getattr(f, "__code__", None)) for f in named)

    def _makes_scalar(self, unit: Unit) -> bool:
        if unit.blocks:
            return False
        names = [_name(p[0]) for p in unit.access.binds if len(p) == 1]
        return any(is_scalar(self._scene.variables.get(n)) for n in names)

    def _statements(self) -> list[ast.stmt]:
        cut = self._cut
        found = rebuild(self._body.units, cut, lambda u: u in cut.kept, self._instead)
        if found:
            heads = [f for f in self._feeds if f.unit is None]
            found = [*(take(f, found[0]) for f in heads), *found]
        return found

    def _instead(self, unit: Unit) -> list[ast.stmt] | None:
        feeds = [f for f in self._feeds if f.unit is unit]
        if feeds:
            return [take(f, unit.node) for f in feeds] if unit in self._cut.kept else []
        if unit.is_leaving and not unit.loops:
            return []
        if unit in self._cut.blocked and not can_strip(unit):
            return self._restored(unit)
        return None

    def _restored(self, unit: Unit) -> list[ast.stmt]:
        """If an earlier statement is run, restore the value that this one has changed."""
        inside = [u for u in self._cut.all if u is unit or unit in u.ancestors]
        if not self._cut.needed & set(inside):
            return []
        names = {_name(p[0]) for u in inside for p in u.access.writes if "<" not in p[0]}
        earlier = {
            _name(p[0]) for u in self._cut.kept if u.position < unit.position for p in u.access.writes
        }  # fmt: skip
        again = sorted(n for n in names & earlier if n in self._scene.variables)
        self._taken_names.update(again)
        return [_restore(n, unit.node) for n in again]

    def _argument_names(self, statements: list[ast.stmt]) -> list[str]:
        local = {**self._scene.local_variables, **dict.fromkeys(self._given)}
        used = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
        first = [n for n in self._scene.code.co_varnames[:1] if n in local]
        rest = sorted((used & local.keys()) - set(first) - {"__class__"})
        extra = [BATCHES] if self._feeds else []
        return [*first, *rest, *extra, *([_TAKEN] if self._taken_names else [])]

    def _compile(self, statements: list[ast.stmt]) -> types.CodeType | None:
        if not statements or not self._computes():
            return None
        if not self._scene.is_function:
            return compile_module(statements, self._scene.code)
        written = _declared_global(self._scene)
        if written:
            declared = ast.copy_location(ast.Global(sorted(written)), statements[0])
            statements = [declared, *statements]
        return compile_block(statements, self._arguments, self._scene.code)

    def _computes(self) -> bool:
        """Whether anything is computed anew: the graph of an existing loss is freed."""
        kept = [u for u in self._cut.kept if not u.blocks]
        if not self.has_backward:
            return bool(kept)
        if any(u.access.is_computing for u in kept):
            return True
        return len(kept) > 1 and not self._cut.needed and not self._has_graph_before()

    def _has_graph_before(self) -> bool:
        """Whether something is read that was computed before the body, and may be a loss."""
        for path in self.at_entry():
            value = self._scene.variables.get(_name(path[0]))
            for name in (*path[1:], ""):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    return True
                value = getattr_static(value, name, None)
        return False

    @property
    def kept(self) -> set[Unit]:
        """The statements that are run."""
        return self._cut.kept

    @property
    def has_backward(self) -> bool:
        return any(u.access.is_backward for u in self._cut.kept)

    @property
    def is_taking(self) -> bool:
        """Whether a current value that this iteration has computed is used."""
        return bool(self._cut.needed)

    def takes_from(self, line: int) -> bool:
        """Whether something is used as it stands that this line or a later one makes."""
        return any(u.node.lineno >= line for u in self._cut.needed)

    def at_entry(self) -> set[Path]:
        """What the statements may read from before the body."""
        cut = self._cut
        read = ((path, u) for u in cut.kept for path in u.access.reads)
        return {path for path, u in read if cut.reaching(path, u)[1]}

    @functools.cached_property
    def is_stale(self) -> bool:
        """Whether a current value that is used was computed from the old batch."""
        env = home_environment(self._scene)
        targets = {n.id for f in self._feeds for n in ast.walk(f.target) if isinstance(n, ast.Name)}
        from_batch = {env.root(n) for n in targets | self._given}
        for unit in self._cut.all:
            if any(p[0] in from_batch for p in unit.access.reads | unit.access.passes):
                if unit in self._cut.needed:
                    return True
                from_batch |= {p[0] for p in unit.access.binds}
        return False

    def run(
        self, batches: Sequence[Any], given: dict[str, Any], is_copied: bool = False
    ) -> dict[str, Any]:
        """Run on fresh copies; returns the variables. `given`: values of arguments."""
        assert self.code is not None
        functions = self._body.functions
        clones.clear()
        copier = Copier(functions.code_for, functions.judge.is_training_object)
        space = copier.globals(self._scene.module_globals, names_of(self.code))
        extra: dict[str, Any] = {n: v if is_copied else copier.copy(v) for n, v in given.items()}
        variables = self._scene.variables
        if self._feeds:
            extra[BATCHES] = iter([copier.copy(b) for b in batches])
        if self._taken_names:
            extra[_TAKEN] = {n: copier.copy(variables[n]) for n in self._taken_names}
        if not self._scene.is_function:
            space.update({n: copier.copy(v) for n, v in self._scene.local_variables.items()})
            space.update(extra)
            with copier.with_own_code():
                exec(self.code, space)
            return space
        local = self._scene.local_variables
        values = [extra[n] if n in extra else copier.copy(local.get(n)) for n in self._arguments]
        closure = tuple(types.CellType(local[n]) for n in self.code.co_freevars)
        function = types.FunctionType(self.code, space, self.code.co_name, None, closure)
        with copier.with_own_code():
            return {**variables, **function(*values)}


def _is_always_run(unit: Unit) -> bool:
    return not any(isinstance(above.node, ast.If) for above in unit.ancestors)


def home_environment(scene: Scene) -> Env:
    """The current variables of a scene."""
    local = set(scene.local_variables)
    if scene.is_function:
        local |= {*scene.code.co_varnames, *scene.code.co_cellvars, *scene.code.co_freevars}
    values = {n: known(v) for n, v in scene.variables.items()}
    arguments = scene.code.co_varnames[: scene.code.co_argcount]
    return Env(scene.module_globals, local, values, _cells(scene), arguments, is_home=True)


def object_at(node: ast.expr, scene: Scene) -> Any:
    """What `optimizer` or `self.optimizer` stands for; None where that is not known."""
    return _value_at(node, scene).obj


def _value_at(node: ast.expr, scene: Scene) -> Value:
    if isinstance(node, ast.Name):
        return home_environment(scene).lookup(node.id)
    if isinstance(node, ast.Attribute):
        return attribute_of(_value_at(node.value, scene), node.attr)
    return UNKNOWN


def _cells(scene: Scene) -> dict[str, Any]:
    """The cells of closure variables, found in the functions that share them."""
    names = {*scene.code.co_cellvars, *scene.code.co_freevars} - {"__class__"}
    found: dict[str, Any] = {}
    for value in scene.local_variables.values():
        if type(value) is not types.FunctionType or not value.__closure__:
            continue
        for name, cell in zip(value.__code__.co_freevars, value.__closure__):
            if name in names and _content(cell) is scene.local_variables.get(name, cell):
                found[name] = cell
    return found


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _declared_global(scene: Scene) -> set[str]:
    """Names that the function declares as globals."""
    source = function_source(scene.code)
    nodes = ast.walk(source.node) if source is not None else ()
    return {n for node in nodes if isinstance(node, ast.Global) for n in node.names}


def _is_restored(functions: Functions, env: Env, path: Path) -> bool:
    """Whether it is a buffer of a model, which is restored before a replay."""
    name = _name(path[0])
    value = env.lookup(name) if env.root(name) == path[0] else functions.value_of(path[0])
    for part in path[1:]:
        if not value.is_known:
            return False
        if functions.is_buffer(value.obj, part) or functions.judge.is_training_object(value.obj):
            return True
        value = attribute_of(value, part)
    return False


def _name(root: str) -> str:
    return root.split("@")[0]


def _restore(name: str, place: ast.stmt) -> ast.stmt:
    value = ast.Subscript(ast.Name(_TAKEN, ast.Load()), ast.Constant(name), ast.Load())
    assign = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(assign, place))


def is_scalar(value: Any) -> bool:
    """Whether it may be a loss."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() == 1


def _names_gradients(code: object) -> bool:
    """Whether a function, or a comprehension in it, reads or writes an attribute `grad`."""
    if not isinstance(code, types.CodeType):
        return False
    return "grad" in code.co_names or any(_names_gradients(c) for c in code.co_consts)
