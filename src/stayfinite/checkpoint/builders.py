"""Placeholders for the results of the known rebuild functions of torch, numpy and the standard library.

Each function here takes the arguments from a file and returns plain data. Wrong arguments raise ValueError, TypeError or
IndexError, which the pickle machine turns into a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .limits import LimitError
from .values import ArrayRef, GlobalRef, Opaque, StorageRef, TensorRef, is_key

__all__ = ["BUILDERS", "build_array"]

_MAX_FILL = 1 << 20
_MAX_SIZE = 1 << 62
_MAX_SHAPES = 4096
_SHAPES: dict[tuple[int, ...], tuple[int, ...]] = {}

STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}


def storage_dtype(kind: Any) -> str | None:
    """The dtype of a storage class, None for an untyped one."""
    name = kind.name if isinstance(kind, GlobalRef) else str(kind)
    return STORAGE_DTYPES.get(name.rpartition(".")[2])


def _ints(value: Any) -> tuple[int, ...]:
    """Intern a shape or strides, because the same few occur again and again."""
    if type(value) is tuple:
        try:
            known = _SHAPES.get(value)
        except TypeError:
            known = None
        if known is not None and all(type(v) is int for v in value):
            return known
    if not isinstance(value, (tuple, list)) or len(value) > 64:
        raise ValueError("a shape is not a short tuple")
    for v in value:
        if type(v) is not int or not 0 <= v <= _MAX_SIZE:
            raise ValueError("a shape holds something else than sizes")
    shape = tuple(value)
    if len(_SHAPES) < _MAX_SHAPES:
        _SHAPES[shape] = shape
    return shape


def _tensor(storage: Any, dtype: str | None, offset: Any, size: Any, stride: Any) -> TensorRef:
    if not isinstance(storage, StorageRef):
        raise ValueError("a tensor without a storage")
    sizes, strides = _ints(size), _ints(stride)
    if len(sizes) != len(strides) or type(offset) is not int or not 0 <= offset < 1 << 62:
        raise ValueError("a tensor's shape, strides and offset do not fit together")
    return TensorRef(storage, dtype or storage.dtype or "uint8", offset, sizes, strides)


def _rebuild_tensor(args: Any) -> TensorRef:
    return _tensor(args[0], None, args[1], args[2], args[3])


def _rebuild_tensor_v3(args: Any) -> TensorRef:
    return _tensor(args[0], args[6].name, args[1], args[2], args[3])


def _rebuild_qtensor(args: Any) -> TensorRef:
    tensor = _rebuild_tensor(args)
    params = args[4]
    if isinstance(params, tuple):
        for label, value in zip(("scale", "zero_point"), params[1:3]):
            tensor.add(label, value)
    return tensor


def _rebuild_sparse(args: Any) -> dict[str, Any]:
    data = args[1]
    if not isinstance(data, tuple):
        raise ValueError("a sparse tensor without its parts")
    labels = (
        ("indices", "values")
        if len(data) <= 4 and not _is_compressed(data)
        else ("compressed_indices", "plain_indices", "values")
    )
    return dict(zip(labels, data))


def _is_compressed(data: tuple[Any, ...]) -> bool:
    return len(data) > 2 and isinstance(data[2], TensorRef)


def _rebuild_meta(args: Any) -> TensorRef:
    size = _ints(args[1])
    return TensorRef(None, args[0].name, 0, size, (0,) * len(size))


def _first(args: Any) -> Any:
    return args[0]


def _rebuild_parameter_with_state(args: Any) -> Any:
    if isinstance(args[0], TensorRef) and args[3]:
        args[0].add("state", args[3])
    return args[0]


def _rebuild_from_type(args: Any) -> Any:
    function, kind, inner, state = args[:4]
    builder = BUILDERS.get(function.path) if isinstance(function, GlobalRef) else None
    value = builder(inner) if builder else Opaque(getattr(kind, "path", "tensor subclass"), inner)
    if isinstance(value, TensorRef) and state:
        value.add("state", state)
    elif isinstance(value, Opaque):
        value.state = state
    return value


def _mapping(args: Any) -> dict[Any, Any]:
    if not args or isinstance(args[0], (GlobalRef, type(None))):
        return {}
    source = args[0]
    if isinstance(source, dict):
        return dict(source)
    return {k: v for k, v in source if is_key(k)}


def _sequence(args: Any) -> list[Any]:
    if not args:
        return []
    if not isinstance(args[0], (list, tuple, dict, str, bytes)):
        raise ValueError("a list made from something that is no sequence")
    return list(args[0])


def _size(args: Any) -> tuple[Any, ...]:
    return tuple(_sequence(args))


def _bytes(args: Any) -> Any:
    if not args:
        return b""
    source = args[0]
    if isinstance(source, int):
        if source > _MAX_FILL:
            raise LimitError(f"the file asks for {source:,} zero bytes at once")
        return bytes(source)
    if isinstance(source, str):
        return _encode(args)
    if isinstance(source, (bytes, memoryview)):
        return source
    return bytes(_sequence(args))


def _encode(args: Any) -> Any:
    text, codec = args[0], args[1] if len(args) > 1 else "utf-8"
    if codec not in ("latin1", "latin-1", "utf-8", "utf8", "ascii"):
        return Opaque("_codecs.encode", (codec,))
    if not isinstance(text, str):
        raise ValueError("only text can be encoded")
    return text.encode(codec)


def _number(kind: Callable[..., Any]) -> Callable[[Any], Any]:
    def build(args: Any) -> Any:
        if not all(
            isinstance(a, (int, float)) or (isinstance(a, str) and len(a) < 400) for a in args
        ):
            raise ValueError("a number made from something else")
        return kind(*args[:2])

    return build


def _text(args: Any) -> str:
    return args[0] if args and isinstance(args[0], str) else ""


def _path(args: Any) -> str:
    return "/".join(a for a in args if isinstance(a, str))


def _type(args: Any) -> Any:
    if len(args) != 1:
        raise LimitError("the file makes a class of its own")
    return Opaque("builtins.type", ())


def _reconstruct(args: Any) -> Any:
    return ArrayRef()


def _dtype(args: Any) -> Opaque:
    return Opaque("numpy.dtype", args)


def descr_of(dtype: Any) -> str:
    """The type string (`<f4`) of a pickled numpy dtype."""
    if not isinstance(dtype, Opaque) or dtype.name != "numpy.dtype" or not dtype.args:
        return "?"
    order = "|"
    if isinstance(dtype.state, tuple) and len(dtype.state) > 1:
        order = dtype.state[1]
        if len(dtype.state) > 2 and (
            dtype.state[2] is not None or dtype.state[3:4] not in ((), (None,))
        ):
            return "?"
    return f"{order}{dtype.args[0]}"


def build_array(array: ArrayRef, state: Any) -> None:
    """Fill an array from the state that numpy pickles: (version, shape, dtype, order, data)."""
    if not isinstance(state, tuple) or len(state) < 4:
        raise ValueError("an array without its state")
    shape, dtype, fortran, data = state[-4:]
    array.shape = _ints(shape)
    array.descr = descr_of(dtype)
    array.fortran_order = bool(fortran)
    array.data = data


def _frombuffer(args: Any) -> ArrayRef:
    array = ArrayRef()
    array.data, array.shape, array.descr = args[0], _ints(args[2]), descr_of(args[1])
    array.fortran_order = args[3] == "F"
    return array


def _scalar(args: Any) -> Any:
    array = ArrayRef()
    array.descr = descr_of(args[0])
    array.data = args[1] if len(args) > 1 else b""
    return array


def _opaque(name: str) -> Callable[[Any], Opaque]:
    return lambda args: Opaque(name, args)


_NUMPY_HOMES = ("numpy.core", "numpy._core")

BUILDERS: dict[str, Callable[[Any], Any]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
    "torch._utils._rebuild_qtensor": _rebuild_qtensor,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _rebuild_sparse,
    "torch._utils._rebuild_nested_tensor": _first,
    "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
    "torch._utils._rebuild_device_tensor_from_numpy": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._utils._rebuild_xla_tensor": _first,
    "torch._utils._rebuild_wrapper_subclass": _opaque("torch._utils._rebuild_wrapper_subclass"),
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch._tensor._rebuild_from_type": _rebuild_from_type,
    "torch.Size": _size,
    "torch.device": _opaque("torch.device"),
    "torch.serialization._get_layout": _opaque("torch.layout"),
    "torch.nn.parameter.Parameter": _first,
    "torch.jit._pickle.build_intlist": _first,
    "torch.jit._pickle.build_tensorlist": _first,
    "torch.jit._pickle.build_doublelist": _first,
    "torch.jit._pickle.build_boollist": _first,
    "torch.jit._pickle.restore_type_tag": _first,
    "collections.OrderedDict": _mapping,
    "collections.defaultdict": _mapping,
    "collections.Counter": _mapping,
    "collections.deque": _sequence,
    "builtins.dict": _mapping,
    "builtins.list": _sequence,
    "builtins.tuple": _size,
    "builtins.set": _sequence,
    "builtins.frozenset": _sequence,
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "builtins.int": _number(lambda value=0, *_: int(value)),
    "builtins.float": _number(float),
    "builtins.bool": _number(bool),
    "builtins.complex": _number(complex),
    "builtins.str": _text,
    "builtins.type": _type,
    "_codecs.encode": _encode,
    "codecs.encode": _encode,
    "numpy.dtype": _dtype,
    "numpy.random._pickle.__generator_ctor": _opaque("numpy.random.Generator"),
    "numpy.random._pickle.__bit_generator_ctor": _opaque("numpy.random.BitGenerator"),
    "numpy.random._pickle.__randomstate_ctor": _opaque("numpy.random.RandomState"),
    **{
        f"pathlib.{k}Path": _path
        for k in ("", "Pure", "Posix", "Windows", "PurePosix", "PureWindows")
    },
    **{
        f"pathlib._local.{k}Path": _path
        for k in ("", "Posix", "PurePosix", "Windows", "PureWindows")
    },
    **{f"{home}.multiarray._reconstruct": _reconstruct for home in _NUMPY_HOMES},
    **{f"{home}.multiarray.scalar": _scalar for home in _NUMPY_HOMES},
    **{f"{home}.numeric._frombuffer": _frombuffer for home in _NUMPY_HOMES},
}
