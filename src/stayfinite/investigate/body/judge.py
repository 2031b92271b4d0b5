"""Decides whether a call may be repeated, from the called object and not its name.

Pure computations may. Calls with side effects (files, iterators, queues, clocks, environments) may not: their result is taken
from the variables. A function of the user is judged by its source.
"""

from __future__ import annotations

import ast
import functools
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import known_calls as calls
from .access import Reader, Verdict
from .effects import (
    changing,
    class_member,
    code_kind,
    exchange,
    file_kind_of,
    home_of,
    is_generator,
    note_change,
    note_draws,
    undecorated,
)
from .sharing import is_shared
from .training_calls import is_training_object, training_call
from .translate import Summary, translate
from .values import UNKNOWN, Bound, Env, Super, Unbound, Value, attribute_of, known

__all__ = ["Judge", "Summarize", "Summary"]

_MAX_DEPTH = 10
_OURS = (
    "stayfinite.guard",
    "stayfinite.patches",
    "stayfinite.runtime.script.run_script",
    "stayfinite.cli",
)


Summarize = Callable[
    [types.FunctionType, "list[Value]", "dict[str, Value]", bool, int], "Summary | None"
]


class Judge:
    """Judges the calls of one body; the results about functions are cached."""

    def __init__(
        self, is_training_object: Callable[[object], bool], summarize: Summarize | None = None
    ) -> None:
        self._is_training_object = is_training_object
        # Of somebody who holds this judge.
        self._summarize = None if summarize is None else weakref.WeakMethod(summarize)
        self.depth = 0
        self.is_lenient = False
        """Whether to trust unresolved calls, in the code of libraries."""
        self._found: dict[tuple[int, int], tuple[ast.Call, Env, Verdict]] = {}

    @property
    def summarize(self) -> Summarize | None:
        return None if self._summarize is None else self._summarize()

    def call(self, node: ast.Call, env: Env) -> Verdict:
        """The effects of this call."""
        key = (id(node), id(env))
        if key not in self._found:
            self._found[key] = (node, env, self._judge(node, env))
        return self._found[key][2]

    def iteration(self, value: Value) -> str | None:
        """The reason why a loop over this must not be repeated."""
        if not value.is_known or calls.can_iterate_again(value.obj):
            return None
        if self.is_lenient and not calls.is_iterator(value.obj):
            return None
        return f"it draws from a {type(value.obj).__name__}"

    def attribute(self, owner: Value, node: ast.Attribute | ast.Subscript) -> Verdict | None:
        """The effects of reading `a.b` or `a[b]`, if that runs user code."""
        if not owner.is_known or file_kind_of(type(owner.obj)) != "user" or self.summarize is None:
            return None
        name = "__getitem__" if isinstance(node, ast.Subscript) else node.attr
        found = class_member(type(owner.obj), name)
        function = found.fget if isinstance(found, property) else found
        if not isinstance(function, types.FunctionType) or self.depth >= _MAX_DEPTH:
            return None
        if isinstance(node, ast.Attribute) and not isinstance(found, property):
            return None
        if code_kind(function) != "user":
            return None
        return self._summary(function, [owner], {}, False, can_protect=False)[1]

    def context(self, manager: Value) -> list[Verdict]:
        """The effects of entering and leaving a context manager: a lock that the loop holds would be waited for."""
        kind = type(manager.obj) if manager.is_known else manager.made_by
        members = [(n, class_member(kind, n)) for n in ("__enter__", "__exit__")] if kind else []
        return [self._entering(n, m, manager) for n, m in members if m is not None]

    def _entering(self, name: str, member: Any, manager: Value) -> Verdict:
        if code_kind(member) not in ("user", "library"):
            return Verdict(calls.module_effect(home_of(member), name))
        if self.summarize is None or self.depth >= _MAX_DEPTH:
            return Verdict()
        is_library = code_kind(member) == "library"
        return self._summary(member, [manager], {}, is_library, can_protect=False)[1]

    def is_training_object(self, obj: Any) -> bool:
        """Whether it is an optimizer, a scaler, or declared as one by the caller."""
        return is_training_object(obj) or self._is_training_object(obj)

    def _judge(self, node: ast.Call, env: Env) -> Verdict:
        reader = Reader(env, self)
        training = training_call(node, reader, self.is_training_object)
        if training is not None:
            return training
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return Verdict(result=_super(reader))
        target = reader.value(node.func)
        if target.kind == "fresh":
            return changing(node, reader, Verdict())
        if isinstance(node.func, ast.Attribute) and reader.value(node.func.value).is_none:
            return Verdict()  # a branch that is not taken: `scaler.scale(loss) if scaler else loss`
        if target.kind == "unknown":
            return changing(node, reader, self._unknown(node, target))
        verdict = self._known(target.obj, node, reader, target.is_shared)
        for other in {type(o): o for o in target.others}.values():
            verdict.outside = verdict.outside or self._known(other, node, reader, False).outside
        return verdict

    def _unknown(self, node: ast.Call, target: Value) -> Verdict:
        func = node.func
        if target.is_shared:
            return Verdict("it works on an object that is shared", result=UNKNOWN)
        if self.is_lenient:
            return Verdict(result=UNKNOWN)
        if isinstance(func, ast.Attribute) and calls.unknown_method_is_harmless(func.attr):
            return Verdict()
        return Verdict("nobody knows what is called", result=UNKNOWN)

    def _known(self, obj: Any, node: ast.Call, reader: Reader, is_shared: bool) -> Verdict:
        if isinstance(obj, Bound):
            return self._c_method(obj, node, reader, is_shared)
        if isinstance(obj, Unbound):
            new = Value("fresh", made_by=obj.owner)
            return self._python(obj.function, node, reader, first=new, can_protect=False)
        if isinstance(obj, functools.partial):
            return self._known(obj.func, node, reader, is_shared)
        if isinstance(obj, (types.FunctionType, types.MethodType)):
            return self._python(obj, node, reader, can_protect=_has_copy(obj, node, reader))
        if isinstance(obj, types.BuiltinFunctionType):
            return self._builtin(obj, node, reader)
        if isinstance(obj, type):
            return self._construction(obj, node, reader)
        if isinstance(obj, nn.Module):
            return self._module_call(obj, node, reader)
        module = str(getattr(type(obj), "__module__", ""))
        if module.split(".")[0] in ("torch", "numpy"):  # operators of torch, ufuncs
            return self._of_module(
                str(getattr(obj, "__module__", module) or module), obj, node, reader
            )
        method = attribute_of(known(obj), "__call__")
        if method.is_known and isinstance(method.obj, types.MethodType):
            return self._python(method.obj, node, reader, can_protect=False)
        return Verdict(f"a {type(obj).__name__} is called", result=UNKNOWN)

    def _c_method(self, bound: Bound, node: ast.Call, reader: Reader, is_shared: bool) -> Verdict:
        owner, name = bound.owner, bound.name
        verdict = Verdict()
        path = reader.env.path(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, Tensor):
            is_mutating = calls.tensor_method_mutates(name) or calls.starts_graph(owner, name)
            note_draws(verdict, "torch", name)
        elif calls.is_plain(owner) and not calls.is_iterator(owner):
            if is_generator(owner):
                return Verdict("it draws from a generator of its own", result=UNKNOWN)
            is_mutating = name in calls.MUTATING
            if is_mutating and is_shared:
                return Verdict("it writes into an object that is shared", result=UNKNOWN)
        elif owner is random._inst:
            is_mutating = False
            note_draws(verdict, "random", name)
        else:
            return Verdict(f"{name} of a {type(owner).__name__} may reach outside", result=UNKNOWN)
        if is_mutating and path is not None:
            note_change(verdict, path)
            if isinstance(node.func, ast.Attribute) and reader.is_in_place(node.func.value):
                verdict.in_place.add(path)
        return verdict

    def _builtin(self, obj: types.BuiltinFunctionType, node: ast.Call, reader: Reader) -> Verdict:
        owner = obj.__self__
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            if type(owner).__module__.startswith("torch._C"):
                return self._of_module("torch", obj, node, reader)
            return self._c_method(Bound(owner, obj.__name__), node, reader, False)
        module = obj.__module__ or getattr(owner, "__name__", "")
        if isinstance(owner, type):
            module = owner.__module__
        if module != "builtins":
            return self._of_module(module, obj, node, reader)
        if not calls.is_pure_builtin(obj.__name__):
            if obj.__name__ == "setattr" and node.args:
                return self._setattr(node, reader)
            return Verdict(f"{obj.__name__}() reaches outside", result=UNKNOWN)
        return self._consuming(obj.__name__, node, reader)

    def _setattr(self, node: ast.Call, reader: Reader) -> Verdict:
        if reader.value(node.args[0]).is_shared:
            return Verdict("it writes into an object that is shared")
        path = reader.env.path(node.args[0])
        return Verdict(mutates={path} if path else set())

    def _consuming(self, name: str, node: ast.Call, reader: Reader) -> Verdict:
        result = UNKNOWN if name == "getattr" else Verdict().result
        if name in calls.CONSUMERS:
            for argument in node.args:
                value = reader.value(argument)
                reason = self.iteration(value)
                if reason is not None and not (value.is_known and callable(value.obj)):
                    return Verdict(reason, result=UNKNOWN)
                if name in ("list", "tuple", "sorted", "enumerate", "zip") and value.is_shared:
                    result = Value("unknown", None, is_shared=True)
        return Verdict(result=result)

    def _of_module(self, module: str, obj: Any, node: ast.Call, reader: Reader) -> Verdict:
        """A function of torch, numpy, math, ..."""
        name = str(getattr(obj, "__name__", ""))
        if calls.exchanges(module, name):
            return exchange(node, reader)
        reason = calls.module_effect(module, name)
        if reason is not None:
            return Verdict(reason, result=UNKNOWN)
        verdict = Verdict(is_computing=module.split(".")[0] in ("torch", "numpy"))
        note_draws(verdict, module, name)
        for keyword in node.keywords:
            path = reader.env.path(keyword.value) if keyword.arg == "out" else None
            if path is not None:
                verdict.mutates.add(path)
            generator = reader.value(keyword.value) if keyword.arg == "generator" else UNKNOWN
            if generator.is_known and isinstance(generator.obj, torch.Generator):
                return Verdict("it draws from a generator of its own", result=UNKNOWN)
        if calls.tensor_method_mutates(name) and node.args:
            path = reader.env.path(node.args[0])
            if path is not None:
                verdict.mutates.add(path)
                verdict.reads.add(path)
        return verdict

    def _construction(self, kind: type, node: ast.Call, reader: Reader) -> Verdict:
        if kind.__module__ == "builtins":
            if issubclass(kind, BaseException) or calls.is_pure_builtin(kind.__name__):
                return self._consuming(kind.__name__, node, reader)
            return Verdict(f"{kind.__name__}() may reach outside", result=UNKNOWN)
        new = Value("fresh", made_by=kind)
        init = attribute_of(known(kind), "__init__").obj
        is_written = (
            isinstance(init, types.FunctionType) and init.__code__.co_filename != "<string>"
        )
        if is_written and code_kind(init) in ("user", "library"):  # not made by `dataclass`
            verdict = self._python(init, node, reader, first=new, can_protect=False)
            verdict.result = new
            return verdict
        if file_kind_of(kind) in ("user", "library"):
            return Verdict(result=new)
        reason = calls.module_effect(kind.__module__, kind.__name__)
        return Verdict(reason, result=UNKNOWN if reason else Verdict().result)

    def _module_call(self, module: nn.Module, node: ast.Call, reader: Reader) -> Verdict:
        verdict = Verdict(is_computing=True)
        if calls.module_draws(module):
            note_draws(verdict, "torch", "dropout")
        seen: set[type] = set()
        for part in module.modules():
            if type(part) in seen or file_kind_of(type(part)) != "user":
                continue
            seen.add(type(part))
            forward = attribute_of(known(part), "forward").obj
            if isinstance(forward, types.MethodType):
                inner = self._python(forward, node, reader, is_root=part is module)
                verdict.outside = verdict.outside or inner.outside
                verdict.is_backward |= inner.is_backward
                verdict.is_exchanging |= inner.is_exchanging
                verdict.needs_protection |= inner.needs_protection
                if part is module:
                    verdict.reads |= inner.reads
                    verdict.mutates |= inner.mutates
                    verdict.replaces |= inner.replaces
        return verdict

    def _python(
        self,
        obj: types.FunctionType | types.MethodType,
        node: ast.Call,
        reader: Reader,
        *,
        first: Value | None = None,
        can_protect: bool = True,
        is_root: bool = True,
    ) -> Verdict:
        """A function with source: functions of the user and of libraries are analyzed."""
        func = obj.__func__ if isinstance(obj, types.MethodType) else obj
        if not isinstance(func, types.FunctionType):  # compiled, as NumPy's random functions are
            home = getattr(obj, "__self__", func)
            return self._of_module(str(type(home).__module__), func, node, reader)
        func = undecorated(func)
        kind = code_kind(func)
        module = str(func.__module__ or "")
        if module.startswith(_OURS):
            return Verdict("it is a part of the protection itself", result=UNKNOWN)
        if kind in ("torch", "stdlib"):
            return self._of_module(module, func, node, reader)
        if module.split(".")[0] in ("numpy", "scipy", "einops"):
            return self._of_module(module, func, node, reader)
        if self.summarize is None or self.depth >= _MAX_DEPTH:
            return Verdict("it is too deep to be analyzed", result=UNKNOWN)
        owner = known(obj.__self__) if isinstance(obj, types.MethodType) else first
        if not is_root:
            return self._summary(func, [owner or UNKNOWN], {}, kind == "library", can_protect)[1]
        positional, named = self._arguments(node, reader, owner)
        summary, verdict = self._summary(func, positional, named, kind == "library", can_protect)
        if summary is not None:
            translate(func, summary, node, reader, owner is not None, verdict)
            verdict.is_computing = True
            verdict.is_analyzed = not any(isinstance(a, ast.Starred) for a in node.args)
        return verdict

    def _arguments(
        self, node: ast.Call, reader: Reader, owner: Value | None
    ) -> tuple[list[Value], dict[str, Value]]:
        positional = [] if owner is None else [owner]
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                break
            positional.append(reader.value(argument))
        return positional, {k.arg: reader.value(k.value) for k in node.keywords if k.arg}

    def _summary(
        self,
        func: types.FunctionType,
        positional: list[Value],
        named: dict[str, Value],
        is_library: bool,
        can_protect: bool,
    ) -> tuple[Summary | None, Verdict]:
        summarize = self.summarize
        assert summarize is not None
        before = self.depth, self.is_lenient
        self.depth, self.is_lenient = self.depth + 1, self.is_lenient or is_library
        try:
            summary = summarize(func, positional, named, is_library, before[0])
        finally:
            self.depth, self.is_lenient = before
        if summary is None:
            return None, Verdict(f"{func.__name__} cannot be analyzed", result=UNKNOWN)
        reason = summary.outside
        if reason is None and is_library and summary.is_training:
            reason = f"{func.__qualname__} trains"
        if reason is None and summary.needs_protection and not can_protect:
            reason = f"{func.__qualname__} changes things that cannot be protected"
        verdict = Verdict(
            reason, summary.is_training, summary.is_backward, summary.is_step,
            summary.optimizers, is_exchanging=summary.is_exchanging,
            needs_protection=summary.needs_protection, result=summary.result,
        )  # fmt: skip
        return summary, verdict


def _has_copy(obj: Any, node: ast.Call, reader: Reader) -> bool:
    """Whether a replay calls a copy of this function; classes and shared objects have none."""
    if isinstance(obj, types.MethodType):
        owner = obj.__self__
        if is_shared(owner) or not hasattr(owner, "__dict__"):
            return False
        name = obj.__func__.__name__
        if name.startswith("__") and name.endswith("__"):
            return False
    if not isinstance(node.func, ast.Attribute):
        return True
    return not isinstance(reader.value(node.func.value).obj, (type, Super))


def _super(reader: Reader) -> Value:
    owner, env = reader.env.lookup("__class__"), reader.env
    first = next(iter(env.arguments), None)
    obj = env.lookup(first) if first is not None else UNKNOWN
    if not owner.is_known or not obj.is_known or not isinstance(owner.obj, type):
        return UNKNOWN
    return known(Super(owner.obj, obj.obj))
