"""A loop's body that can be run again, on copies of its variables."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from torch import Tensor, nn

from ...runtime.batches import named_tensors
from .access import GRADIENTS, RANDOM
from .caller import ARGUMENT, argument_expressions, assignments, plain_values
from .compiled import compile_block, compile_module
from .copies import Copier
from .cut import Cut, Rules, rebuild, touches
from .feeds import feeds_of
from .home import Home, homes_of
from .own_code import STEPPED
from .plan import Plan, home_environment, is_scalar
from .scene import Scene
from .summary import Functions
from .units import build_units, flat

__all__ = ["NOT_GIVEN", "Body"]


class _NotGiven:
    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = _NotGiven()


class Body:
    """The statements of a body on which the training's own calls depend.

    They keep their lines and file, so an operator trace shows the user's source. They have no visible side effects, because each
    run uses new copies of the variables.
    """

    def __init__(
        self,
        scene: Scene,
        home: Home,
        functions: Functions,
        outer: Sequence[Scene] = (),
        wanted: str = "",
    ) -> None:
        """`wanted`: the prefix of the names to compute, if not the training's own calls."""
        self.scene = scene
        self.home = home
        self.functions = functions
        self.wanted = wanted
        self._outer = outer
        self.units = build_units(home.statements, home_environment(scene), functions.judge)
        self.feeds = feeds_of(home, self.units, scene.variables)
        self._plans: dict[tuple[bool, bool, bool], Plan] = {}

    @classmethod
    def of(
        cls,
        scene: Scene,
        outer: Sequence[Scene] = (),
        is_training_object: Callable[[object], bool] = lambda obj: False,
        is_full: bool = False,
        is_buffer: Callable[[object, str], bool] = lambda module, name: False,
        is_loose: bool = False,
    ) -> Body | None:
        """The body around the scene's current line; None where nothing in it can be run again.

        `outer`: the scenes that called this one, innermost first; `is_full`: statements that reach outside
        are run again as well, because somebody has asked for it; `is_buffer`: whether an attribute of a module
        is put back before every run; `is_loose`: see `Rules`.
        """
        found = []
        for home in homes_of(scene):
            functions = Functions(is_training_object, is_full, is_buffer, is_loose)
            body = cls(scene, home, functions, outer)
            if body.plan().code is None:
                continue
            if body.plan().has_backward:
                return body
            found.append(body)
        return found[0] if found else None

    def given_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The plain tensors among the variables that the loop around it reads and no loop around it writes."""
        if not self.home.is_loop:
            return  # an argument may be a state that the caller updates
        names = [n for n in ast.walk(self.home.node) if isinstance(n, ast.Name)]
        homes = [h.node for h in homes_of(self.scene) if h.is_loop]
        inside = [n for home in homes for n in ast.walk(home) if isinstance(n, ast.Name)]
        written = {n.id for n in (*names, *inside) if isinstance(n.ctx, ast.Store)}
        for name in dict.fromkeys(n.id for n in names if n.id not in written):
            value = self.scene.variables.get(name)
            if isinstance(value, (Tensor, list, tuple, dict)):
                yield from ((n, t) for n, t in named_tensors(value, name) if not t.requires_grad)

    def scenes(self) -> list[Scene]:
        """Where the body runs, and what has called it, innermost first."""
        return [self.scene, *self._outer]

    def extended(self) -> Body | None:
        """The body of the next outer loop or of the function, with what it has computed before in the same iteration."""
        mine = self.functions
        is_outside = False
        for home in homes_of(self.scene):
            if is_outside:
                functions = Functions(mine.judge.is_training_object, mine.is_full, mine.is_buffer)
                body = Body(self.scene, home, functions, self._outer)
                if body.plan().code is not None and body.plan().has_backward:
                    return body
            is_outside = is_outside or home.node is self.home.node
        return None

    def loosened(self) -> Body | None:
        """The same body, with current values in place of those that the iteration has overwritten.

        It runs more: a layer that keeps a statistic on itself for its second call cannot be computed again otherwise.
        """
        mine = self.functions
        if mine.is_loose:
            return None
        functions = Functions(
            mine.judge.is_training_object, mine.is_full, mine.is_buffer, is_loose=True
        )
        body = Body(self.scene, self.home, functions, self._outer)
        is_more = len(body.plan().kept) > len(self.plan().kept)
        return body if is_more and body.plan().has_backward else None

    def as_far_as(self, code: CodeType | None, line: int | None, instruction: int) -> Body | None:
        """The body up to another place, in this function or in one that has called it."""
        mine = self.functions
        scenes = [self.scene, *self._outer]
        for i, scene in enumerate(scenes if line is not None else ()):
            if scene.code is code and line is not None:
                there = replace(scene.moved(line, instruction), is_over=False)
                rules = (mine.judge.is_training_object, mine.is_full, mine.is_buffer, mine.is_loose)
                body = Body.of(there, scenes[i + 1 :], *rules)
                # What comes after here has not been made: a variable holds what it was before.
                return None if body is None or body.plan().takes_from(scene.line) else body
        return None

    def with_source(self, changed: Callable[..., Scene]) -> Body | None:
        """The same body in another version of its source; `changed` maps a scene to it."""
        mine = self.functions
        outer = [changed(s, is_caller=True) for s in self._outer]
        scene = changed(self.scene)
        rules = (mine.judge.is_training_object, mine.is_full, mine.is_buffer, mine.is_loose)
        depth = next((i for i, h in enumerate(homes_of(self.scene)) if h.node is self.home.node), 0)
        homes = homes_of(scene)
        if depth < len(homes):  # an outer loop, because this one is that
            body = Body(scene, homes[depth], Functions(*rules), outer)
            if body.plan().code is not None and body.plan().has_backward:
                return body
        return Body.of(scene, outer, *rules)

    def plan(self, is_fed: bool = False, is_new: bool = False, is_part: bool = False) -> Plan:
        """The plan to run, with or without a batch; `is_new`: for a batch that the loop has not worked on."""
        key = (is_fed, is_new, is_part)
        if key not in self._plans:
            feeds = tuple(self.feeds) if is_fed else ()
            given = self._given_names if is_fed and not feeds else frozenset(self._plain)
            self._plans[key] = Plan(self, feeds, given, is_new, is_part)
        return self._plans[key]

    @property
    def has_effects(self) -> bool:
        """Whether an iteration changes something that later ones compute with: a replay buffer, an environment.

        Then this has happened, though the step was skipped. Counters, logs and collected results do not count.
        """
        environment = home_environment(self.scene)
        following = build_units(
            self.home.following, environment, self.functions.judge, is_over=True
        )
        units = [*flat(self.units), *flat(following)]
        bound = {p[0] for u in units for p in u.access.binds if len(p) == 1}
        fed = {n.id for f in self.feeds for n in ast.walk(f.target) if isinstance(n, ast.Name)}
        read = {p[0] for u in self.plan().kept for p in u.access.reads}
        changed = {
            p[0]
            for u in units
            if not u.access.is_training
            for p in u.access.mutates
            if p[0] not in bound and "<" not in p[0]
        }
        roots = {root.partition("@")[0] for root in changed & read} - fed
        return any(not self._is_part_of_training(root) for root in roots)

    @functools.cached_property
    def is_exchanging(self) -> bool:
        """Whether a statement after the backward communicates with other processes, so that it is not run again."""
        environment = home_environment(self.scene)
        following = build_units(
            self.home.following, environment, self.functions.judge, is_over=True
        )
        units = [*flat(self.units), *flat(following)]
        first = next((i for i, u in enumerate(units) if u.access.is_backward), len(units))
        return any(
            u.access.is_exchanging or "torch.distributed" in (u.access.outside or "")
            for u in units[first:]
        )

    @functools.cached_property
    def is_of_one_iteration(self) -> bool:
        """Whether it computes with something that was different in another iteration: what was drawn elsewhere, a loop
        variable, state between iterations.
        """
        plan = self.plan()
        if plan.is_taking:
            return True
        environment = home_environment(self.scene)
        following = build_units(
            self.home.following, environment, self.functions.judge, is_over=True
        )
        written = {p for u in (*flat(self.units), *flat(following)) for p in u.access.writes}
        loops = [
            h.node for h in homes_of(self.scene) if isinstance(h.node, (ast.For, ast.AsyncFor))
        ]
        targets = [n for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
        written |= {(environment.root(n.id),) for n in targets}
        written -= {GRADIENTS, RANDOM}
        read = {r for r in plan.at_entry() if any(touches(w, r) for w in written)}
        return any(not self._is_part_of_training(path[0].partition("@")[0]) for path in read)

    def _is_part_of_training(self, root: str) -> bool:
        value = self.scene.variables.get(root)
        return isinstance(value, nn.Module) or self.functions.judge.is_training_object(value)

    @property
    def takes_several(self) -> bool:
        """Whether the body draws its batches in an inner loop."""
        return any(f.is_repeated for f in self.feeds)

    def can_bind(self, num_items: int) -> bool:
        """Whether this many batches of one iteration can be bound to the body."""
        plan = self.plan(is_fed=True, is_new=True)
        if plan.code is None or plan.is_stale:
            return False
        if not self.feeds:
            return self._caller is not None and self._caller.can_bind(num_items)
        if self.takes_several:
            return num_items >= len(self.feeds)
        return num_items == len(self.feeds)

    def run(self, batch: Any = NOT_GIVEN, is_part: bool = False) -> dict[str, Any]:
        """Run the statements once; returns the variables afterwards.

        `batch`: the batch to compute with, or a list of them. `is_part`: only accumulate the gradients of this batch, because the step
        comes with a later one.
        """
        if batch is NOT_GIVEN:
            return self.plan().run((), self._plain)
        if not self.feeds:
            return self._run_from_caller(batch, is_part)
        is_single = len(self.feeds) == 1 and not self.feeds[0].is_repeated
        is_new = not _shares_objects(batch, self.scene.variables)
        return self.plan(True, is_new, is_part).run([batch] if is_single else list(batch), {})

    def _run_from_caller(self, batch: Any, is_part: bool) -> dict[str, Any]:
        if self._caller is None:
            return self.plan().run((), self._plain)
        space = self._caller.run(batch)
        given = {n: space[ARGUMENT + n] for n in self._given_names if ARGUMENT + n in space}
        is_new = not _shares_objects(batch, self.scene.variables)
        return self.plan(True, is_new, is_part).run((), given, is_copied=True)

    def run_following(self, namespace: dict[str, Any]) -> None:
        """Run the training's own calls after the step (a scheduler's, a scaler's), after a `run`."""
        found = self._following
        if found is None:
            return
        code, arguments = found
        copier = Copier(self.functions.code_for, self.functions.judge.is_training_object)
        namespace.update(_stepped(namespace, copier))
        if not self.scene.is_function:
            with copier.with_own_code():
                exec(code, namespace)
            return
        space = dict(self.scene.module_globals)
        space.update(_stepped({n: space.get(n) for n in code.co_names}, copier))
        local = self.scene.local_variables
        closure = tuple(types.CellType(local[n]) for n in code.co_freevars)
        function = types.FunctionType(code, space, code.co_name, None, closure)
        values = [namespace.get(n) for n in arguments]
        with copier.with_own_code():
            function(*values)

    @functools.cached_property
    def _following(self) -> tuple[types.CodeType, list[str]] | None:
        environment = home_environment(self.scene)
        units = build_units(self.home.following, environment, self.functions.judge, is_over=True)
        cut = Cut(units, Rules(is_call=True))
        cut.solve(lambda u: u.access.is_training and not u.blocks and not u.access.is_backward)
        statements = rebuild(units, cut, lambda u: u in cut.kept, lambda u: None)
        if not statements or not any(u.access.is_training for u in cut.kept):
            return None
        if not self.scene.is_function:
            return compile_module(statements, self.scene.code), []
        local = self.scene.local_variables
        used = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
        arguments = sorted(used & local.keys() - {"__class__"})
        return compile_block(statements, arguments, self.scene.code), arguments

    def made(self, namespace: dict[str, Any]) -> list[Tensor]:
        """Floating-point scalars that a run has made, among them the loss."""
        before = self.scene.variables
        return [
            v for k, v in namespace.items()
            if is_scalar(v) and before.get(k) is not v and not k.startswith("__stayfinite")
        ]  # fmt: skip

    def given_anew(self, namespace: dict[str, Any]) -> list[Tensor]:
        """Floating-point tensors that a run has assigned, of any shape."""
        before = self.scene.variables
        found = [
            t for k, v in namespace.items() if before.get(k) is not v for _, t in named_tensors(v)
        ]
        return [t for t in found if t.is_floating_point()]

    @functools.cached_property
    def _expressions(self) -> dict[str, ast.expr]:
        """The expressions of the caller for the arguments, if the body is a whole function."""
        if self.home.is_loop or not self._outer or not self.scene.is_function:
            return {}
        env = home_environment(self._outer[0])
        return argument_expressions(self.scene, self._outer[0], env, self.functions.judge)

    @functools.cached_property
    def _plain(self) -> dict[str, Any]:
        if not self._expressions:
            return {}
        env = home_environment(self._outer[0])
        return plain_values(self._expressions, env, self.functions.judge)

    @property
    def _given_names(self) -> frozenset[str]:
        return frozenset(self._expressions)

    @functools.cached_property
    def _caller(self) -> Body | None:
        """The caller's body, as far as it computes the arguments."""
        if not self._expressions:
            return None
        for home in homes_of(self._outer[0], assignments(self._expressions)):
            mine = self.functions
            functions = Functions(
                mine.judge.is_training_object, mine.is_full, mine.is_buffer, mine.is_loose
            )
            body = Body(self._outer[0], home, functions, self._outer[1:], ARGUMENT)
            if body.can_bind_anything:
                return body
        return None

    @property
    def can_bind_anything(self) -> bool:
        return bool(self.feeds) or self._caller is not None


def _shares_objects(batch: Any, variables: dict[str, Any]) -> bool:
    """Whether this batch is in the variables, so that the body has worked on it."""
    mine = {id(v) for v in variables.values() if isinstance(v, (Tensor, list, dict))}
    todo = [batch]
    for _ in range(1000):
        if not todo:
            break
        value = todo.pop()
        if isinstance(value, (Tensor, list, dict)) and id(value) in mine:
            return True
        if isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
    return False


def _stepped(variables: dict[str, Any], copier: Copier) -> dict[str, Any]:
    """The optimizers and schedulers among these, as a replay uses them."""
    return {n: copier.copy(v) for n, v in variables.items() if isinstance(v, STEPPED)}
