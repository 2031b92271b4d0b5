"""A pickle machine that cannot run code.

It reads the same instructions as Python's unpickler, with a stack and a memo, but it does not import modules or call functions
that the file names. Known rebuilders become placeholders (`builders`), everything else becomes `Opaque`, and what could run
code becomes a finding (`policy`). Every count that the file controls is limited (`limits`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .builders import BUILDERS, build_array
from .limits import FileFault, LimitError, Limits
from .policy import Objection, canonical, object_to_call, object_to_name, object_to_new
from .values import ArrayRef, GlobalRef, ObjectKey, Opaque, TensorRef, is_key

__all__ = ["DISPATCH", "Machine"]

Buffer = bytes | bytearray | memoryview

_MAX_LINE = 4096
_SLICE_FROM = 1024
_CHECK_EVERY = 1 << 16
_BYTES_PER_OBJECT = 56
_BYTES_PER_MEMO = 100
_WORDS_PER_PAIR = 8
"""What Python takes for a small object, for a memo entry, for a pair in a dict."""
_TEXT_HEAD = 50
_LARGE = 1 << 13
_MAX_FAR = 1_000_000
_MAX_MARKS = 100_000
_LONGEST = 9
"""Bytes of the longest instruction without its data."""

_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_SIZED = (list, tuple, dict, str, bytes)

_uint32 = struct.Struct("<I").unpack_from

_GETATTR = "builtins.getattr"


DISPATCH: dict[int, Callable[[Machine], None]] = {}
"""The functions of the instruction bytes; filled by `pickles`."""


class Machine:
    """Reads consecutive pickles from a buffer.

    `persistent` turns a persistent id into a value (torch names its storages so); `nested` reads a whole file that is embedded as
    bytes. Import it from `pickles`, which defines the instructions.
    """

    def __init__(
        self,
        data: Buffer,
        limits: Limits,
        *,
        persistent: Callable[[Any], Any] | None = None,
        nested: Callable[[Any], Any] | None = None,
        is_torchscript: bool = False,
    ) -> None:
        self.data = data
        self.pos = 0
        self.limits = limits
        self.persistent = persistent
        self.nested = nested
        self.is_torchscript = is_torchscript
        self.objections: dict[Objection, None] = {}
        self.opaque: dict[str, None] = {}
        self.num_objects = 0
        self.num_text = 0
        self.num_items = 0
        """What containers hold, in words of eight bytes."""
        self.num_opcodes = 0
        self._num_spent = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.far: dict[int, Any] = {}
        """Memo entries that are not in a row; picklers number theirs from 0."""

    def load(self) -> Any:
        """Read the next pickle as plain data, and advance the position."""
        self.stack, self.marks, self.memo, self.far = [], [], [], {}
        start = self.pos
        try:
            while not self._run():
                self.num_opcodes += _CHECK_EVERY
                self.check_budget()
            return self._finish()
        except FileFault:
            raise
        except (IndexError, struct.error):
            if self.pos + _LONGEST >= len(self.data):
                raise FileFault("truncated", f"the pickle at byte {start:,} never ends") from None
            raise self._malformed("an instruction lacks what it needs") from None
        except KeyError as e:
            raise self._malformed(f"unknown instruction or memo entry {e.args[0]!r:.40}") from None
        except (ValueError, TypeError, AttributeError, OverflowError) as e:
            raise self._malformed(f"{e!s:.120}") from None

    def _run(self) -> bool:
        """Run the next thousands of instructions; True at the end of the pickle.

        The most frequent instructions are executed here, without a call.
        """
        data, dispatch, memo, stack, pos = self.data, DISPATCH, self.memo, self.stack, self.pos
        try:
            for _ in range(_CHECK_EVERY):
                code = data[pos]
                if code == 0x72:  # LONG_BINPUT
                    index = _uint32(data, pos + 1)[0]
                    memo.append(stack[-1]) if index == len(memo) else self.put(index)
                    pos += 5
                elif code == 0x68 and data[pos + 1] < len(memo):  # BINGET
                    stack.append(memo[data[pos + 1]])
                    pos += 2
                elif code == 0x4B:  # BININT1
                    stack.append(data[pos + 1])
                    pos += 2
                elif code == 0x85:  # TUPLE1
                    self.num_objects += 1
                    stack[-1] = (stack[-1],)
                    pos += 1
                elif code == 0x28:  # MARK
                    self.marks.append(stack)
                    stack = self.stack = []
                    pos += 1
                elif code == 0x74:  # TUPLE
                    items, stack = stack, self.marks.pop()
                    self.stack = stack
                    self.num_objects += 1
                    self.num_items += len(items)
                    stack.append(tuple(items))
                    pos += 1
                elif code in _CONSTANTS:
                    stack.append(_CONSTANTS[code])
                    pos += 1
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(self.get(_uint32(data, pos + 1)[0]))
                    pos += 5
                elif code == 0x2E:  # STOP
                    pos += 1
                    return True
                else:
                    self.pos = pos + 1
                    dispatch[code](self)
                    pos, stack = self.pos, self.stack
        finally:
            self.pos = max(pos, self.pos)
        return False

    def _finish(self) -> Any:
        value = self.stack.pop()
        self.check_budget()
        self.memo, self.far = [], {}
        self.check_budget()  # what only the memo held is free again
        return value

    def _malformed(self, why: str) -> FileFault:
        return FileFault("unreadable", f"the pickle is malformed at byte {self.pos:,}: {why}")

    def check_budget(self) -> None:
        """Stop a pickle that exceeds a limit: instructions, time, or memory."""
        if self.num_opcodes > self.limits.max_opcodes:
            raise LimitError(f"the pickle has more than {self.limits.max_opcodes:,} instructions")
        used = _BYTES_PER_OBJECT * self.num_objects + 8 * (self.num_items + len(self.stack))
        used += self.num_text + 8 * len(self.memo) + _BYTES_PER_MEMO * len(self.far)
        if len(self.marks) > _MAX_MARKS:
            raise LimitError("the pickle opens too many containers at once")
        used += sum(64 + 8 * len(mark) for mark in self.marks)
        self.limits.spend(used - self._num_spent)
        self._num_spent = used
        if self.limits.meter is not None:
            self.limits.meter.check()

    def count(self, number: int = 1) -> None:
        self.num_objects += number
        if self.num_objects > self.limits.max_objects:
            raise LimitError(f"the pickle builds more than {self.limits.max_objects:,} objects")

    def take(self, length: int) -> Buffer:
        end = self.pos + length
        if length < 0 or end > len(self.data):
            self.pos = len(self.data)
            raise IndexError
        piece = self.data[self.pos : end]
        self.pos = end
        return piece

    def line(self) -> bytes:
        window = bytes(self.data[self.pos : self.pos + _MAX_LINE])
        end = window.find(b"\n")
        if end < 0:
            self.pos = min(len(self.data), self.pos + _MAX_LINE)
            raise IndexError
        self.pos += end + 1
        return window[:end]

    def text(self, length: int) -> None:
        self.num_text += length + _TEXT_HEAD
        if self.num_text > self.limits.max_text:
            raise LimitError(f"the pickle holds more than {self.limits.max_text:,} bytes of text")
        self.stack.append(str(self.take(length), "utf-8", "surrogatepass"))

    def blob(self, length: int) -> None:
        """Large byte strings are not copied."""
        self.count()
        piece = self.take(length)
        if length >= _SLICE_FROM:
            end = self.pos
            self.stack.append(memoryview(self.data)[end - length : end])
        else:
            self.num_text += length
            self.stack.append(bytes(piece))

    def pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def name(self, module: str, name: str) -> GlobalRef:
        if len(module) + len(name) > self.limits.max_name:
            raise LimitError(f"a class name of {len(module) + len(name):,} characters")
        self.count()
        module, name = canonical(module, name)
        if not (self.is_torchscript and module.startswith("__torch__")):
            self.object(object_to_name(module, name))
        return GlobalRef(module, name)

    def object(self, objection: Objection | None) -> None:
        if objection is not None and len(self.objections) < 1000:
            self.objections[objection] = None

    def make_opaque(self, name: str, args: Any) -> Opaque:
        self.count()
        if len(self.opaque) < 10_000:
            self.opaque[name] = None
        return Opaque(name, args)

    def new(self, kind: Any, args: Any) -> Any:
        """An object of a class, as made by NEWOBJ."""
        if not isinstance(kind, GlobalRef):
            self.object(("hostile_pickle", "makes an object of something that is no class"))
            return self.make_opaque("?", args)
        if kind.path in BUILDERS and isinstance(args, tuple):
            return self.build(kind.path, args)
        if not (self.is_torchscript and kind.module.startswith("__torch__")):
            self.object(object_to_new(kind.module, kind.name))
        return self.make_opaque(kind.path, args)

    def call(self, function: Any, args: Any) -> Any:
        """Handle REDUCE without calling anything."""
        if not isinstance(function, GlobalRef):
            self.object(("hostile_pickle", "calls an object that the file itself has made"))
            return self.make_opaque("?", args)
        path = function.path
        if path == "torch.storage._load_from_bytes" and self.nested is not None:
            return self.nested(args[0])
        if path in BUILDERS:
            return self.build(path, args)
        if path in ("copyreg._reconstructor", "copyreg.__newobj__"):
            return self._reconstruct(path, args)
        if path == _GETATTR:
            return self._getattr(args)
        if not (self.is_torchscript and function.module.startswith("__torch__")):
            self.object(object_to_call(function.module, function.name))
        return self.make_opaque(path, args)

    def build(self, path: str, args: Any) -> Any:
        self.count()
        if len(args) == 1 and isinstance(args[0], _SIZED):
            # A rebuilder may copy what it is given, again and again.
            self.num_items += len(args[0]) * _WORDS_PER_PAIR
            if len(args[0]) > _LARGE:
                self.check_budget()
        return BUILDERS[path](args)

    def _reconstruct(self, path: str, args: Any) -> Any:
        made = self.new(args[0], args[1:])
        if path == "copyreg._reconstructor" and isinstance(made, Opaque) and len(args) > 2:
            made.args, made.state = (), args[2]
        return made

    def _getattr(self, args: Any) -> Any:
        """Python itself pickles nested classes and bound methods so; anything else is a trick."""
        name = args[1] if len(args) == 2 else None
        plain = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        if plain and isinstance(args[0], GlobalRef):
            return self.name(args[0].module, f"{args[0].name}.{name}")
        if plain and isinstance(args[0], Opaque):
            self.object(
                ("unknown_call", f"{args[0].name}.{name}: takes a method of a saved object")
            )
        else:
            self.object(("hostile_pickle", "builtins.getattr: reaches for an attribute by name"))
        return self.make_opaque(f"{getattr(args[0], 'name', '?')}.{name!s:.60}", ())

    def set_state(self, target: Any, state: Any) -> None:
        if isinstance(target, Opaque):
            target.state = state if target.state is None else (target.state, state)
        elif isinstance(target, ArrayRef):
            build_array(target, state)
        elif isinstance(target, TensorRef):
            target.add("state", state)
        elif isinstance(target, GlobalRef):
            self.object(("hostile_pickle", f"{target.path}: changes a class or function in place"))

    def set_items(self, target: Any, items: list[Any]) -> None:
        self.num_items += len(items) * _WORDS_PER_PAIR // 2
        pairs = zip(items[::2], items[1::2])
        if isinstance(target, dict):
            for key, value in pairs:
                target[key if is_key(key) else ObjectKey(len(target), key)] = value
        elif isinstance(target, Opaque):
            target.items.extend(pairs)
        else:
            raise ValueError("items are put into something that holds none")

    def extend(self, target: Any, items: list[Any]) -> None:
        self.num_items += len(items) * (1 if isinstance(target, list) else _WORDS_PER_PAIR)
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Opaque):
            target.items.extend((len(target.items) + i, v) for i, v in enumerate(items))
        else:
            raise ValueError("elements are put into something that holds none")

    def put(self, index: int) -> None:
        value = self.stack[-1]
        if index == len(self.memo):
            self.memo.append(value)
        elif 0 <= index < len(self.memo):
            self.memo[index] = value
        elif index >= 0 and len(self.far) < _MAX_FAR:
            self.far[index] = value
        else:
            raise LimitError("the pickle remembers too many objects")

    def get(self, index: int) -> Any:
        return self.memo[index] if 0 <= index < len(self.memo) else self.far[index]

    def load_persistent(self, key: Any) -> Any:
        if self.persistent is None:
            return self.make_opaque("persistent id", (key,))
        return self.persistent(key)
