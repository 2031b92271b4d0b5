"""Decodes the instructions of a pickle for `machine.py`, which cannot run code.

>>> import pickle
>>> from stayfinite.checkpoint.limits import Limits
>>> Machine(pickle.dumps({"a": [1, 2.5]}), Limits()).load()
{'a': [1, 2.5]}
"""

from __future__ import annotations

import codecs
import pickle
import struct
from collections.abc import Callable
from typing import Any

from .limits import FileFault, LimitError
from .machine import DISPATCH, Machine
from .values import Opaque, is_key

__all__ = ["Machine", "looks_like_pickle"]

_MAX_INT_BYTES = 512


def looks_like_pickle(head: bytes) -> bool:
    """Whether a file begins like a pickle of protocol 2 to 5; older ones have no mark."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def _op(code: bytes) -> Callable[[Callable[[Machine], None]], Callable[[Machine], None]]:
    def add(function: Callable[[Machine], None]) -> Callable[[Machine], None]:
        DISPATCH[code[0]] = function
        return function

    return add


def _constant(code: bytes, make: Callable[[], Any], is_object: bool = False) -> None:
    def load(m: Machine) -> None:
        if is_object:
            m.count()
        m.stack.append(make())

    DISPATCH[code[0]] = load


_constant(pickle.NONE, lambda: None)
_constant(pickle.NEWTRUE, lambda: True)
_constant(pickle.NEWFALSE, lambda: False)
_constant(pickle.EMPTY_TUPLE, tuple)
_constant(pickle.EMPTY_LIST, list, is_object=True)
_constant(pickle.EMPTY_DICT, dict, is_object=True)
_constant(pickle.EMPTY_SET, list, is_object=True)


def _fixed(code: bytes, layout: str, act: Callable[[Machine, int], None]) -> None:
    """An instruction with one number behind it."""
    size, unpack = struct.calcsize(layout), struct.Struct(layout).unpack_from

    def load(m: Machine) -> None:
        start = m.pos
        m.pos = start + size
        if m.pos > len(m.data):
            raise IndexError
        act(m, unpack(m.data, start)[0])

    DISPATCH[code[0]] = load


def _push(m: Machine, value: Any) -> None:
    m.num_items += 4
    m.stack.append(value)


def _get(m: Machine, index: int) -> None:
    m.stack.append(m.get(index))


def _long(m: Machine, length: int) -> None:
    if length > _MAX_INT_BYTES:
        raise LimitError(f"a whole number of {length:,} bytes")
    m.stack.append(int.from_bytes(m.take(length), "little", signed=True))


def _python2_text(m: Machine, length: int) -> None:
    m.num_text += length + 50
    if m.num_text > m.limits.max_text:
        raise LimitError(f"the pickle holds more than {m.limits.max_text:,} bytes of text")
    raw = bytes(m.take(length))
    try:
        m.stack.append(raw.decode("ascii"))
    except UnicodeDecodeError:
        m.stack.append(raw)


def _extension(m: Machine, number: int) -> None:
    m.object(("unknown_call", f"extension code {number}: stands for a class that is not known"))
    m.stack.append(m.make_opaque(f"extension code {number}", ()))


_fixed(pickle.BININT, "<i", _push)
_fixed(pickle.BININT1, "<B", _push)
_fixed(pickle.BININT2, "<H", _push)
_fixed(pickle.BINFLOAT, ">d", _push)
_fixed(pickle.BINGET, "<B", _get)
_fixed(pickle.LONG_BINGET, "<I", _get)
_fixed(pickle.BINPUT, "<B", Machine.put)
_fixed(pickle.LONG_BINPUT, "<I", Machine.put)
_fixed(pickle.LONG1, "<B", _long)
_fixed(pickle.LONG4, "<i", _long)
_fixed(pickle.SHORT_BINUNICODE, "<B", Machine.text)
_fixed(pickle.BINUNICODE, "<I", Machine.text)
_fixed(pickle.BINUNICODE8, "<Q", Machine.text)
_fixed(pickle.SHORT_BINBYTES, "<B", Machine.blob)
_fixed(pickle.BINBYTES, "<I", Machine.blob)
_fixed(pickle.BINBYTES8, "<Q", Machine.blob)
_fixed(pickle.BYTEARRAY8, "<Q", Machine.blob)
_fixed(pickle.SHORT_BINSTRING, "<B", _python2_text)
_fixed(pickle.BINSTRING, "<i", _python2_text)
_fixed(pickle.PROTO, "<B", lambda m, version: None)
_fixed(pickle.FRAME, "<Q", lambda m, length: None)
_fixed(pickle.EXT1, "<B", _extension)
_fixed(pickle.EXT2, "<H", _extension)
_fixed(pickle.EXT4, "<i", _extension)


@_op(pickle.MARK)
def _mark(m: Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []


@_op(pickle.POP)
def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()


@_op(pickle.POP_MARK)
def _pop_mark(m: Machine) -> None:
    m.pop_mark()


@_op(pickle.DUP)
def _dup(m: Machine) -> None:
    m.num_items += 1
    m.stack.append(m.stack[-1])


def _tuple(code: bytes, length: int) -> None:
    def load(m: Machine) -> None:
        m.count()
        if len(m.stack) < length:
            raise IndexError
        m.stack[-length:] = [tuple(m.stack[-length:])]

    DISPATCH[code[0]] = load


_tuple(pickle.TUPLE1, 1)
_tuple(pickle.TUPLE2, 2)
_tuple(pickle.TUPLE3, 3)


def _collect(code: bytes, make: Callable[[list[Any]], Any], weight: int = 1) -> None:
    def load(m: Machine) -> None:
        m.count()
        items = m.pop_mark()
        m.num_items += weight * len(items)
        m.stack.append(make(items))

    DISPATCH[code[0]] = load


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {k: v for k, v in zip(items[::2], items[1::2]) if is_key(k)}


_collect(pickle.TUPLE, tuple)
_collect(pickle.LIST, list)
_collect(pickle.FROZENSET, list)
_collect(pickle.DICT, _pairs, weight=5)


@_op(pickle.APPEND)
def _append(m: Machine) -> None:
    value = m.stack.pop()
    m.extend(m.stack[-1], [value])


def _extend(m: Machine) -> None:
    items = m.pop_mark()
    m.extend(m.stack[-1], items)


DISPATCH[pickle.APPENDS[0]] = _extend
DISPATCH[pickle.ADDITEMS[0]] = _extend


@_op(pickle.SETITEM)
def _setitem(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.set_items(m.stack[-1], [key, value])


@_op(pickle.SETITEMS)
def _setitems(m: Machine) -> None:
    items = m.pop_mark()
    m.set_items(m.stack[-1], items)


@_op(pickle.MEMOIZE)
def _memoize(m: Machine) -> None:
    m.put(len(m.memo) + len(m.far))


@_op(pickle.PUT)
def _put(m: Machine) -> None:
    m.put(int(m.line()))


@_op(pickle.GET)
def _get_line(m: Machine) -> None:
    _get(m, int(m.line()))


@_op(pickle.INT)
def _int_line(m: Machine) -> None:
    line = m.line()
    m.stack.append({b"00": False, b"01": True}.get(line, int(line, 0) if len(line) < 400 else 0))


@_op(pickle.LONG)
def _long_line(m: Machine) -> None:
    line = m.line().rstrip(b"L")
    if len(line) > 1000:
        raise LimitError("a whole number of more than 1,000 digits")
    m.stack.append(int(line, 0))


@_op(pickle.FLOAT)
def _float_line(m: Machine) -> None:
    m.stack.append(float(m.line()))


@_op(pickle.STRING)
def _string_line(m: Machine) -> None:
    line = m.line().strip()
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise ValueError("a text without quotes")
    m.stack.append(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


@_op(pickle.UNICODE)
def _unicode_line(m: Machine) -> None:
    m.stack.append(codecs.raw_unicode_escape_decode(m.line())[0])


@_op(pickle.GLOBAL)
def _global(m: Machine) -> None:
    module, name = str(m.line(), "utf-8"), str(m.line(), "utf-8")
    m.stack.append(m.name(module, name))


@_op(pickle.STACK_GLOBAL)
def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        m.object(("hostile_pickle", "names a class by something that is no text"))
        m.stack.append(m.make_opaque("?", ()))
        return
    m.stack.append(m.name(module, name))


@_op(pickle.REDUCE)
def _reduce(m: Machine) -> None:
    args, function = m.stack.pop(), m.stack.pop()
    if not isinstance(args, (tuple, list)):
        args = (args,)
    m.stack.append(m.call(function, args))


@_op(pickle.INST)
def _inst(m: Machine) -> None:
    function = m.name(str(m.line(), "utf-8"), str(m.line(), "utf-8"))
    args = tuple(m.pop_mark())
    m.stack.append(m.call(function, args))


@_op(pickle.OBJ)
def _obj(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(m.call(items[0], tuple(items[1:])))


@_op(pickle.NEWOBJ)
def _newobj(m: Machine) -> None:
    args, kind = m.stack.pop(), m.stack.pop()
    m.stack.append(m.new(kind, args))


@_op(pickle.NEWOBJ_EX)
def _newobj_ex(m: Machine) -> None:
    kwargs, args, kind = m.stack.pop(), m.stack.pop(), m.stack.pop()
    m.stack.append(m.new(kind, args))
    if kwargs and isinstance(m.stack[-1], Opaque):
        m.stack[-1].items.append(("kwargs", kwargs))


@_op(pickle.BUILD)
def _build(m: Machine) -> None:
    state = m.stack.pop()
    m.set_state(m.stack[-1], state)


@_op(pickle.PERSID)
def _persid(m: Machine) -> None:
    m.stack.append(m.load_persistent(str(m.line(), "utf-8")))


@_op(pickle.BINPERSID)
def _binpersid(m: Machine) -> None:
    m.stack.append(m.load_persistent(m.stack.pop()))


@_op(pickle.NEXT_BUFFER)
def _next_buffer(m: Machine) -> None:
    raise FileFault("unreadable", "the pickle keeps its data in buffers outside the file")


@_op(pickle.READONLY_BUFFER)
def _readonly_buffer(m: Machine) -> None:
    return None
