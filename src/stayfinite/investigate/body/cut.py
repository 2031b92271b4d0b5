"""Selects the statements to run again: those on which the training's calls depend.

A statement with side effects is not run; its result is taken from the current variables. If that value was overwritten since,
it is lost, and statements that need it cannot be run either.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .access import GRADIENTS, RANDOM
from .units import Unit, flat
from .values import Path

__all__ = ["Cut", "Rules", "can_strip", "rebuild", "show"]

_ALWAYS_THERE = {RANDOM, GRADIENTS}


@dataclass
class Rules:
    """The rules for values from before the body, and for values that are not computed again."""

    restored: frozenset[str] = frozenset()
    """Names that start with their first value again: the batch, a function's arguments."""
    lost_names: frozenset[str] = frozenset()
    """Local names of a function that has returned, so that they are lost."""
    is_call: bool = False
    """Whether it is a function that is called again, with unchanged surroundings."""
    fed: frozenset[Unit] = frozenset()
    """Statements that get their value from outside instead of their expression."""
    is_new: bool = False
    """Whether everything restored is unchanged by an earlier run of the body."""
    is_full: bool = False
    """Whether statements with side effects are run again as well."""
    is_loose: bool = False
    """Whether lost values are replaced by current ones: another batch, good enough to try a setting."""
    start: int = 0
    """Statements before this position belong to a finished step."""
    is_restored: Callable[[Path], bool] = lambda path: False
    """Whether a value is restored before a replay, like a model's buffer."""


@dataclass
class Cut:
    """The statements to run, and the variables that they use."""

    units: list[Unit]
    rules: Rules
    blocked: dict[Unit, str] = field(default_factory=dict)
    """Statements that cannot be run again, and why."""
    trapped: set[Unit] = field(default_factory=set)
    """The same in a branch that is not taken: they end the run, should it come to them."""
    kept: set[Unit] = field(default_factory=set)
    needed: set[Unit] = field(default_factory=set)
    """Statements that are not run, but whose current values are used."""

    def __post_init__(self) -> None:
        self.all = list(flat(self.units))

    def solve(self, is_wanted: Callable[[Unit], bool]) -> None:
        """Find the statements that can be run, then those on which the wanted statements depend."""
        for unit in self.all[: self.rules.start]:
            self._block(unit, "it belongs to a step that has been made")
        for unit in self.all:
            is_free = unit in self.rules.fed or self.rules.is_full
            if unit.access.outside and not is_free:
                self._block(unit, unit.access.outside)
        if not (self.rules.is_new or self.rules.is_call):
            self._block_what_changed_the_batch()
        while True:
            self._block_what_lost_its_values()
            self._follow([u for u in self.all if is_wanted(u)])
            if self._block_what_would_be_done_twice():
                continue
            stuck = {u.loops[0] for u in self.needed if u.loops} - self._out
            if not stuck or self.rules.is_loose:
                return
            for loop in stuck:
                self._block(loop, "a part of the loop cannot be run again")

    def _block_what_changed_the_batch(self) -> None:
        """`lengths.mul_(n)` after `x, lengths = batch`: the batch holds already what it does."""
        parts = {name for unit in self.all for name in _parts_of_entry(unit, self.all)}
        for unit in self.all:
            changed = next((p for p in unit.access.mutates if p[0] in parts), None)
            if changed is not None and not unit.blocks and unit not in self.rules.fed:
                self._block(unit, f"{show(changed)} holds already what it does")

    @property
    def _out(self) -> set[Unit]:
        return self.trapped.union(self.blocked)

    def _block(self, unit: Unit, reason: str) -> None:
        if unit.is_dead:
            self.trapped |= {unit, *(u for b in unit.blocks.values() for u in flat(b))}
            return
        self.blocked.setdefault(unit, reason)
        for block in () if can_strip(unit) else unit.blocks.values():
            for inner in flat(block):
                self.blocked.setdefault(inner, reason)

    def _block_what_lost_its_values(self) -> None:
        is_changed = True
        while is_changed:
            is_changed = False
            for unit in self.all:
                if unit in self.blocked or unit in self.rules.fed or unit in self.trapped:
                    continue
                gone = next((r for r in unit.access.reads if self._is_lost(r, unit)), None)
                if gone is not None:
                    self._block(unit, f"the value that {show(gone)} had is gone")
                    is_changed = True

    def _block_what_would_be_done_twice(self) -> bool:
        """`buffer.push(x)` before `buffer.sample()`: the variables already contain the pushed value."""
        twice = {
            source: path
            for unit in self.kept
            for read in unit.access.reads
            for source in self.reaching(read, unit)[0]
            for path in source.access.mutates - source.access.replaces - source.access.reads
            if source in self.kept and source is not unit and touches(path, read)
            if source not in self.trapped
            if self._is_lost(path, source)
        }
        for source, path in twice.items():
            self._block(source, f"{show(path)} holds already what it does")
        return bool(twice)

    def _is_lost(self, path: Path, unit: Unit) -> bool:
        if path in _ALWAYS_THERE or self.rules.is_loose:
            return False
        sources, is_entry = self.reaching(path, unit)
        absent = [s for s in sources if s in self.blocked]
        if is_entry and self.rules.is_restored(path):
            return bool(absent)
        if is_entry and not self._is_there_at_entry(path):
            return self._is_overwritten(path, unit)
        if not absent:
            return False
        if path[0] in self.rules.lost_names and any(_binds_root(s, path) for s in absent):
            return True
        return self._is_overwritten(path, unit)

    def _is_there_at_entry(self, path: Path) -> bool:
        if self.rules.is_call:
            return True
        if path[0] not in self.rules.restored:
            return False
        # The step's own batch is the same object, with its changes in place.
        return self.rules.is_new or not any(
            w[0] == path[0] and (len(w) > 1 or w in u.access.mutates)
            for u in self.all
            for w in u.access.writes
        )

    def _is_overwritten(self, path: Path, unit: Unit) -> bool:
        """Whether the variable was changed after this statement had read it."""
        for other in self.all:
            is_after = other.position >= unit.position or set(other.loops) & unit.repeated_in
            if not is_after and other not in unit.loops:
                continue
            if any(_overwrites(w, path) for w in other.access.writes):
                return True
        return False

    def reaching(self, path: Path, unit: Unit) -> tuple[set[Unit], bool]:
        """The statements whose value may be read here; whether it may be from before the body."""
        found: set[Unit] = set()
        is_entry = True
        for other in reversed(self.all[: unit.position]):
            is_entry = is_entry and not _binds_on_all_ways(other, path, unit)
            if not any(touches(w, path) for w in other.access.writes):
                continue
            found.add(other)
            if _is_certain(other, unit) and any(_covers(w, path) for w in other.access.binds):
                if unit.repeated_in <= {*other.loops, other}:
                    return found, False
                return found | self._carried(path, unit, other), False
        return found | self._carried(path, unit, None), is_entry

    def _carried(self, path: Path, unit: Unit, source: Unit | None) -> set[Unit]:
        """What an earlier iteration of an inner loop may have written."""
        loops = unit.repeated_in - (set(source.loops) if source is not None else set())
        late = self.all[unit.position :]
        return {
            u for u in late
            if set(u.loops) & loops and any(touches(w, path) for w in u.access.writes)
        }  # fmt: skip

    def _follow(self, wanted: Iterable[Unit]) -> None:
        self.kept, self.needed = set(), set()
        todo = [u for u in wanted if u not in self.blocked]
        while todo:
            unit = todo.pop()
            if unit in self.kept:
                continue
            self.kept.add(unit)
            todo += [u for u in unit.ancestors if u not in self.blocked]
            for source in self._sources(unit):
                (self.needed.add if source in self.blocked else todo.append)(source)

    def _sources(self, unit: Unit) -> set[Unit]:
        found: set[Unit] = set()
        if unit in self.rules.fed or unit in self.trapped:
            return found
        for path in unit.access.reads:
            found |= self.reaching(path, unit)[0]
        for path in unit.access.passes:
            found |= {
                u for u in self.reaching(path, unit)[0]
                if any(_covers(w, path) for w in u.access.writes)
            }  # fmt: skip
        if unit.is_loop:
            found |= {u for u in self.all if unit in u.loops and _steers(u)}
        return found


def show(path: Path) -> str:
    """A path as source text."""
    text = path[0].split("@")[0]
    return text + "".join(p if p.startswith("[") else f".{p}" for p in path[1:])


def touches(written: Path, read: Path) -> bool:
    return written == read[: len(written)] or read == written[: len(read)]


def _covers(written: Path, read: Path) -> bool:
    return written == read[: len(written)]


_overwrites = _covers


def _parts_of_entry(unit: Unit, units: list[Unit]) -> Iterable[str]:
    """The names to which this statement hands out the parts of a value from before the body."""
    node = unit.node
    if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.Name, ast.Subscript)):
        return ()
    is_made_here = any(w == r[:1] for r in unit.access.reads for u in units for w in u.access.binds)
    return () if is_made_here else [p[0] for p in unit.access.binds if len(p) == 1]


def _binds_root(unit: Unit, path: Path) -> bool:
    return (path[0],) in unit.access.writes


def _steers(unit: Unit) -> bool:
    """Statements that end an inner loop, or skip a part of it."""
    return isinstance(unit.node, (ast.Break, ast.Continue))


def can_strip(unit: Unit) -> bool:
    """Leave out the context of a `with` that has side effects (a timer, a lock), but not its block."""
    return isinstance(unit.node, ast.With)


def _is_certain(writer: Unit, reader: Unit) -> bool:
    """Whether the writer has always run before the reader."""
    above = set(reader.ancestors)
    if writer in above:
        return True
    parent = writer.parent
    if writer.is_loop:
        return False
    while parent is not None and parent not in above:
        if not isinstance(parent.node, (ast.With, ast.Try)):
            return False
        parent = parent.parent
    return not (parent is not None and _in_other_block(parent, writer, reader))


def _binds_on_all_ways(compound: Unit, path: Path, reader: Unit) -> bool:
    """Both branches of an `if`, or the body of a loop (which is assumed to run at least once)."""
    if not isinstance(compound.node, (ast.If, ast.For)) or compound in reader.ancestors:
        return False
    names = ["body"] if compound.is_loop else ["body", "orelse"]
    return all(_block_binds(compound.blocks[name], path) for name in names)


def _block_binds(block: list[Unit], path: Path) -> bool:
    for unit in block:
        if any(_covers(w, path) for w in unit.access.binds):
            return True
        names = {ast.If: ["body", "orelse"], ast.With: ["body"], ast.Try: ["body"]}
        inner = names.get(type(unit.node), [])
        if inner and all(_block_binds(unit.blocks[name], path) for name in inner):
            return True
    return False


def _in_other_block(parent: Unit, writer: Unit, reader: Unit) -> bool:
    """In the other branch of the same `if`."""
    if not isinstance(parent.node, ast.If):
        return False
    return _block_of(parent, writer) != _block_of(parent, reader)


def _block_of(parent: Unit, unit: Unit) -> str:
    line = [unit, *unit.ancestors]
    child = line[line.index(parent) - 1]
    return next(name for name, block in parent.blocks.items() if child in block)


Keep = Callable[[Unit], bool]
Replace = Callable[[Unit], "list[ast.stmt] | None"]


def rebuild(units: list[Unit], cut: Cut, keep: Keep, replace: Replace) -> list[ast.stmt]:
    """The statements to run, at their positions in the source."""
    found: list[ast.stmt] = []
    for unit in units:
        if unit in cut.trapped and keep(unit):
            found.append(_trap(unit.node))
            continue
        instead = replace(unit)
        if instead is not None:
            found += instead
        elif not unit.blocks:
            found += [unit.node] if keep(unit) else []
        else:
            found += _rebuild_compound(unit, cut, keep, replace)
    return found


def _trap(place: ast.stmt) -> ast.stmt:
    """What may not be run again was taken to be in a branch that is not taken."""
    made = ast.parse("raise RuntimeError('a branch that was not taken before')").body[0]
    for node in ast.walk(made):
        ast.copy_location(node, place)
    return made


def _rebuild_compound(unit: Unit, cut: Cut, keep: Keep, replace: Replace) -> list[ast.stmt]:
    blocks = {name: rebuild(block, cut, keep, replace) for name, block in unit.blocks.items()}
    if not keep(unit) and not any(blocks.values()):
        return []
    if unit in cut.blocked and can_strip(unit):
        return blocks["body"]
    node = copy.copy(unit.node)
    if isinstance(node, ast.Try):
        _refill_try(node, unit, blocks)
        return [node] if blocks["body"] else []
    for name, block in blocks.items():
        is_optional = name in ("orelse", "finalbody")
        setattr(node, name, block or ([] if is_optional else [_nothing(unit.node)]))
    return [node]


def _refill_try(node: ast.Try, unit: Unit, blocks: dict[str, list[ast.stmt]]) -> None:
    node.body, node.orelse = blocks["body"], blocks["orelse"]
    node.finalbody = blocks["finalbody"]
    handlers = []
    for index, handler in enumerate(node.handlers):
        cut = copy.copy(handler)
        cut.body = blocks[f"handler{index}"] or [_nothing(handler)]
        handlers.append(cut)
    node.handlers = handlers
    if not node.handlers and not node.finalbody:
        node.finalbody = [_nothing(unit.node)]


def _nothing(place: ast.stmt | ast.excepthandler) -> ast.Pass:
    return ast.copy_location(ast.Pass(), place)
