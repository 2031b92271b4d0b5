"""A loop's body that can be run again, on copies of its variables."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .compiled import compile_block, compile_module
from .copies import Copier, names_of
from .cut import Cut, Rules, can_strip, rebuild, show
from .feeds import BATCHES, Feed, feeds_of, take
from .home import Home, homes_of
from .scene import Scene
from .source import function_source
from .summary import Functions
from .units import Unit, build_units
from .values import Env, known

__all__ = ["NOT_GIVEN", "Body"]

TAKEN = "__stayfinite_taken__"


class _NotGiven:
    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = _NotGiven()


class Body:
    """The statements of a body that the training's own calls depend on.

    They are the same objects at the same lines, so an operator trace sees the user's file. Nothing that
    they write can be felt: they work on copies, made anew for each run.
    """

    def __init__(self, scene: Scene, home: Home, functions: Functions, units: list[Unit]) -> None:
        self.scene = scene
        self._home = home
        self._functions = functions
        self._units = units
        self._feeds = feeds_of(home, units, scene.variables)

    @classmethod
    def of(
        cls,
        scene: Scene,
        outer: Sequence[Scene] = (),
        is_training_object: Callable[[object], bool] = lambda obj: False,
    ) -> Body | None:
        """The body around the scene's current line; None where nothing in it can be run again.

        `outer`: the scenes that called this one, innermost first.
        """
        found = []
        for home in homes_of(scene):
            functions = Functions(is_training_object)
            units = build_units(home.statements, _home_environment(scene), functions.judge)
            body = cls(scene, home, functions, units)
            if body._plan.code is None:
                continue
            if body._plan.has_backward:
                return body
            found.append(body)
        return found[0] if found else None

    @functools.cached_property
    def _plan(self) -> _Plan:
        return _Plan(self, ())

    @functools.cached_property
    def _fed_plan(self) -> _Plan:
        return _Plan(self, tuple(self._feeds))

    @property
    def taken(self) -> tuple[str, ...]:
        """Variables whose value is used as it stands, because what made it cannot be run again."""
        return self._plan.taken

    @property
    def left_out(self) -> tuple[str, ...]:
        """Lines of the source that are not run."""
        return self._plan.left_out

    def can_bind(self, num_items: int) -> bool:
        """Whether so many batches, drawn for one iteration, can be put where the body takes its own."""
        if not self._feeds or self._fed_plan.code is None or self._fed_plan.is_stale:
            return False
        if any(f.is_repeated for f in self._feeds):
            return num_items >= len(self._feeds)
        return num_items == len(self._feeds)

    def run(self, batch: Any = NOT_GIVEN) -> dict[str, Any]:
        """Run the statements once; the variables afterwards.

        `batch`: what the loop is to compute with; a list of them where it takes several.
        """
        if batch is NOT_GIVEN or not self._feeds:
            return self._plan.run(())
        is_single = len(self._feeds) == 1 and not self._feeds[0].is_repeated
        return self._fed_plan.run([batch] if is_single else list(batch))

    def made(self, namespace: dict[str, Any]) -> list[Tensor]:
        """Floating scalars that a run has made: among them is the loss."""
        before = self.scene.variables
        return [
            v for k, v in namespace.items()
            if _is_scalar(v) and before.get(k) is not v and not k.startswith("__stayfinite")
        ]  # fmt: skip


class _Plan:
    """Which statements are run, compiled once."""

    def __init__(self, body: Body, feeds: tuple[Feed, ...]) -> None:
        self._body = body
        self._scene = body.scene
        self._feeds = feeds
        self._cut = Cut(body._units, self._rules())
        self._cut.solve(self._wanted())
        self._taken_names: set[str] = set()
        statements = self._statements()
        self._arguments = self._argument_names(statements)
        self.code = self._compile(statements)

    def _rules(self) -> Rules:
        heads = [f for f in self._feeds if f.unit is None]
        names = {n.id for f in heads for n in ast.walk(f.target) if isinstance(n, ast.Name)}
        roots = frozenset(_home_environment(self._scene).root(n) for n in names)
        return Rules(roots, fed=frozenset(f.unit for f in self._feeds if f.unit is not None))

    def _wanted(self) -> Callable[[Unit], bool]:
        units = self._cut.all
        if any(u.access.is_backward for u in units):
            return lambda u: u.access.is_training and not u.blocks
        current = units[-1] if units else None
        return lambda u: self._makes_scalar(u) or (u is current and not u.is_leaving)

    def _makes_scalar(self, unit: Unit) -> bool:
        if unit.blocks:
            return False
        names = [p[0].split("@")[0] for p in unit.access.binds if len(p) == 1]
        return any(_is_scalar(self._scene.variables.get(n)) for n in names)

    def _statements(self) -> list[ast.stmt]:
        cut = self._cut
        found = rebuild(self._body._units, cut, lambda u: u in cut.kept, self._instead)
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
            return self._restored(unit) if unit in self._cut.needed else []
        return None

    def _restored(self, unit: Unit) -> list[ast.stmt]:
        """Where an earlier statement is run, what this one made of its value is put back."""
        inside = [u for u in self._cut.all if u is unit or unit in u.ancestors]
        names = {_name(p[0]) for u in inside for p in u.access.writes if "<" not in p[0]}
        earlier = {
            _name(p[0]) for u in self._cut.kept if u.position < unit.position for p in u.access.writes
        }  # fmt: skip
        again = sorted(n for n in names & earlier if n in self._scene.variables)
        self._taken_names.update(again)
        return [_restore(n, unit.node) for n in again]

    def _argument_names(self, statements: list[ast.stmt]) -> list[str]:
        local = self._scene.local_variables
        used = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
        first = [n for n in self._scene.code.co_varnames[:1] if n in local]
        rest = sorted((used & local.keys()) - set(first) - {"__class__"})
        extra = [BATCHES] if self._feeds else []
        return [*first, *rest, *extra, *([TAKEN] if self._taken_names else [])]

    def _compile(self, statements: list[ast.stmt]) -> types.CodeType | None:
        if not any(self._is_wanted_kept(u) for u in self._cut.kept):
            return None
        if not self._scene.is_function:
            return compile_module(statements, self._scene.code)
        written = _declared_global(self._scene)
        if written:
            place = statements[0]
            statements = [ast.copy_location(ast.Global(sorted(written)), place), *statements]
        return compile_block(statements, self._arguments, self._scene.code)

    def _is_wanted_kept(self, unit: Unit) -> bool:
        return not unit.blocks

    @property
    def has_backward(self) -> bool:
        return any(u.access.is_backward for u in self._cut.kept)

    @functools.cached_property
    def taken(self) -> tuple[str, ...]:
        needed = self._cut.needed
        paths = {show(p) for u in needed for p in u.access.writes if "<" not in p[0]}
        return tuple(sorted(paths))

    @functools.cached_property
    def is_stale(self) -> bool:
        """Whether something that is taken as it stands was computed from the old batch."""
        names = {n.id for f in self._feeds for n in ast.walk(f.target) if isinstance(n, ast.Name)}
        spoiled = {(_home_environment(self._scene).root(n),) for n in names}
        roots = {p[0] for p in spoiled}
        for unit in self._cut.all:
            if unit in self._cut.blocked and any(p[0] in roots for p in unit.access.reads):
                if unit in self._cut.needed:
                    return True
                roots |= {p[0] for p in unit.access.binds}
            elif any(p[0] in roots for p in unit.access.reads):
                roots |= {p[0] for p in unit.access.binds}
        return False

    @property
    def left_out(self) -> tuple[str, ...]:
        gone = [u for u in self._cut.all if u not in self._cut.kept]
        return tuple(ast.unparse(u.node).splitlines()[0] for u in gone)

    def run(self, batches: Sequence[Any]) -> dict[str, Any]:
        assert self.code is not None
        functions = self._body._functions
        copier = Copier(functions.code_for, functions.judge.is_training_object)
        space = copier.globals(self._scene.module_globals, names_of(self.code))
        given = {BATCHES: iter(batches)} if self._feeds else {}
        variables = self._scene.variables
        if self._taken_names:
            given[TAKEN] = {n: copier.copy(variables[n]) for n in self._taken_names}  # type: ignore[assignment]
        if not self._scene.is_function:
            space.update({n: copier.copy(v) for n, v in self._scene.local_variables.items()})
            space.update(given)
            exec(self.code, space)
            return space
        local = self._scene.local_variables
        values = [given[n] if n in given else copier.copy(local[n]) for n in self._arguments]
        closure = tuple(types.CellType(local[n]) for n in self.code.co_freevars)
        function = types.FunctionType(self.code, space, self.code.co_name, None, closure)
        return {**variables, **function(*values)}


def _home_environment(scene: Scene) -> Env:
    local = set(scene.local_variables)
    if scene.is_function:
        local |= {*scene.code.co_varnames, *scene.code.co_cellvars, *scene.code.co_freevars}
    values = {n: known(v) for n, v in scene.variables.items()}
    return Env(scene.module_globals, local, values, _cells(scene), is_home=True)


def _cells(scene: Scene) -> dict[str, Any]:
    """The cells of variables that functions defined here share with it, found in those functions."""
    names = {*scene.code.co_cellvars, *scene.code.co_freevars} - {"__class__"}
    found: dict[str, Any] = {}
    for value in scene.local_variables.values():
        if not isinstance(value, types.FunctionType) or not value.__closure__:
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
    """Names that the function writes as globals."""
    source = function_source(scene.code)
    nodes = ast.walk(source.node) if source is not None else ()
    return {n for node in nodes if isinstance(node, ast.Global) for n in node.names}


def _name(root: str) -> str:
    return root.split("@")[0]


def _restore(name: str, place: ast.stmt) -> ast.stmt:
    value = ast.Subscript(ast.Name(TAKEN, ast.Load()), ast.Constant(name), ast.Load())
    assign = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(assign, place))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() == 1
