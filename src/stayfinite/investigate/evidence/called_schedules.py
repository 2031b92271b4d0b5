"""Functions of the script that are called with a step and set the rate: `adjust_learning_rate(optimizer, step)`, or an
object that is called, `schedule(step)`.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any

from ...locate.frames import is_user_file
from ...runtime.state import TrainState
from ..body.home import homes_of
from ..body.plan import object_at
from ..body.scene import Scene
from ..investigation import Investigation
from .own_schedules import Formula, StandIn, first_bad_step, held_by, stand_in, stand_in_for

__all__ = ["called_schedule"]


def called_schedule(investigation: Investigation) -> tuple[Formula, int, types.CodeType] | None:
    """The rate as a function of the step, where that is not finite, and the code that computes it."""
    for scene in investigation.vehicle.scenes():
        for call in _calls(scene):
            found = _setter(object_at(call.func, scene))
            formula = _formula(investigation.state, scene, call, *found) if found else None
            if found is None or formula is None:
                continue
            at = first_bad_step(formula[0], formula[1])
            if at is not None:
                return formula[0], at, found[0].__code__
    return None


def _calls(scene: Scene) -> Iterator[ast.Call]:
    seen: set[int] = set()
    for home in homes_of(scene):
        for node in ast.walk(home.node):
            if isinstance(node, ast.Call) and node.lineno not in seen:
                seen.add(node.lineno)
                yield node


def _setter(called: Any) -> tuple[types.FunctionType, Any] | None:
    """A function of the user's that sets a rate, and the object whose method it is."""
    if isinstance(called, types.MethodType):
        function, owner = called.__func__, called.__self__
    elif isinstance(called, types.FunctionType):
        function, owner = called, None
    else:
        function, owner = vars(type(called)).get("__call__"), called
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    is_users = is_user_file(code.co_filename) and "param_groups" in code.co_names
    return (function, owner) if is_users and "lr" in code.co_consts else None


def _formula(
    state: TrainState, scene: Scene, call: ast.Call, function: types.FunctionType, owner: Any
) -> tuple[Formula, int] | None:
    """The call with other numbers in place of its first whole one, on a stand-in of the optimizer."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    given: dict[int | str, Any] = dict(enumerate(_value(a, scene) for a in call.args))
    given.update({str(k.arg): _value(k.value, scene) for k in call.keywords})
    counter = next((k for k, v in given.items() if type(v) is int), None)
    held = held_by(state, owner) if owner is not None else None
    moved = [k for k, v in given.items() if any(v is o for o in state.optimizers)]
    if counter is None or (held is None) == (not moved):
        return None

    def formula(step: int) -> Any:
        values = {**given, counter: step}
        optimizers = [values[k] for k in moved]
        values.update({k: stand_in_for(o) for k, o in zip(moved, optimizers)})
        mine = [] if owner is None else [owner if held is None else stand_in(owner, held)]
        named = {k: v for k, v in values.items() if isinstance(k, str)}
        function(*mine, *(v for k, v in values.items() if isinstance(k, int)), **named)
        standing: StandIn = values[moved[0]] if moved else getattr(mine[0], str(held))
        return standing.param_groups[0]["lr"]

    return formula, int(given[counter])


def _value(node: ast.expr, scene: Scene) -> Any:
    """What an argument is now; an expression that calls nothing is computed."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return object_at(node, scene)
    if any(isinstance(n, (ast.Call, ast.Await, ast.NamedExpr)) for n in ast.walk(node)):
        return None
    code = compile(ast.Expression(node), scene.file, "eval")
    try:
        return eval(code, dict(scene.variables))
    except Exception:
        return None
