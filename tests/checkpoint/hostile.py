"""Files that lie, bite or never end, each with the codes of which a scan must give at least one."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

HOSTILE = ("hostile_pickle",)
BROKEN = ("unreadable", "truncated", "limit_exceeded")


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    codes: tuple[str, ...]
    suffix: str = ".pt"


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def torch_zip(
    data_pkl: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED
) -> bytes:
    """A torch archive round a pickle of one's own."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        archive.writestr("archive/version", "3\n")
        for key, raw in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", raw)
    return out.getvalue()


def call(module: str, name: str, *args: str, how: str = "global") -> bytes:
    """A pickle that calls module.name(*args), in several spellings."""
    texts = b"".join(b"X" + struct.pack("<I", len(a.encode())) + a.encode() for a in args)
    if how == "inst":
        return b"(" + texts + f"i{module}\n{name}\n".encode() + b"."
    if how == "obj":
        return b"\x80\x02(" + f"c{module}\n{name}\n".encode() + texts + b"o."
    if how == "stack_global":
        names = b"".join(b"\x8c" + bytes([len(n)]) + n.encode() for n in (module, name))
        return b"\x80\x04" + names + b"\x93(" + texts + b"tR."
    if how == "memoized":
        names = b"".join(b"\x8c" + bytes([len(n)]) + n.encode() + b"\x940" for n in (module, name))
        return b"\x80\x04" + names + b"h\x00h\x01\x93(" + texts + b"tR."
    if how == "newobj":
        return b"\x80\x02" + f"c{module}\n{name}\n".encode() + b"(" + texts + b"t\x81."
    if how == "newobj_ex":
        return b"\x80\x04" + f"c{module}\n{name}\n".encode() + b"(" + texts + b"t}\x92."
    return b"\x80\x02" + f"c{module}\n{name}\n".encode() + b"(" + texts + b"tR."


DANGEROUS = [
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"), ("subprocess", "check_output"),
    ("builtins", "eval"), ("builtins", "exec"), ("__builtin__", "eval"), ("builtins", "__import__"),
    ("builtins", "open"), ("builtins", "compile"), ("builtins", "getattr"), ("builtins", "breakpoint"),
    ("importlib", "import_module"), ("runpy", "run_path"), ("shutil", "rmtree"), ("socket", "create_connection"),
    ("ctypes", "CDLL"), ("pickle", "loads"), ("_pickle", "loads"), ("cPickle", "loads"), ("marshal", "loads"),
    ("types", "FunctionType"), ("types", "CodeType"), ("operator", "attrgetter"), ("operator", "methodcaller"),
    ("functools", "reduce"), ("webbrowser", "open"), ("urllib.request", "urlopen"), ("requests", "get"),
    ("multiprocessing", "Process"), ("threading", "Thread"), ("pty", "spawn"), ("code", "interact"),
    ("timeit", "timeit"), ("pdb", "run"), ("cProfile", "run"), ("trace", "Trace"), ("doctest", "testfile"),
    ("logging", "FileHandler"), ("tempfile", "mktemp"), ("sqlite3", "connect"), ("codecs", "open"), ("io", "open"),
    ("numpy.testing._private.utils", "runstring"), ("numpy.f2py.crackfortran", "myeval"), ("numpy", "load"),
    ("torch", "load"), ("torch.hub", "load"), ("torch.serialization", "load"), ("torch.package", "PackageImporter"),
    ("torch.fx.graph_module", "reduce_graph_module"), ("torch.utils.cpp_extension", "load_inline"),
    ("torch.utils._config_module", "ConfigModule.load_config"), ("torch.utils.collect_env", "run"),
    ("torch.jit", "load"), ("torch._dynamo.guards", "GuardBuilder.get"), ("cloudpickle.cloudpickle", "_make_function"),
    ("dill._dill", "_create_function"), ("joblib", "load"), ("pandas.io.pickle", "read_pickle"), ("setuptools", "setup"),
    ("pip", "main"), ("asyncio", "run"), ("signal", "signal"), ("atexit", "register"), ("gc", "get_objects"),
    ("torch.serialization", "os.system"), ("torch.storage", "torch.serialization.os.system"), ("some.lib", "os"),
    ("some.lib", "sub.process"), ("some.lib", "Thing.__init__.__globals__"), ("some.lib", "popen"),
    ("evil lib", "Class"), ("", "system"), ("lib", "a b"),
]  # fmt: skip


def pickles(marker: str) -> Iterator[tuple[str, bytes, tuple[str, ...]]]:
    """Pickles that would run code, or that cannot be read at any sensible cost."""
    for protocol in range(6):
        yield f"reduce_{protocol}", pickle.dumps({"w": Evil(marker)}, protocol), HOSTILE
    for module, name in DANGEROUS:
        yield f"call_{module}.{name}", call(module, name, f"touch {marker}"), HOSTILE
    for how in ("inst", "obj", "stack_global", "memoized", "newobj", "newobj_ex"):
        yield f"how_{how}", call("subprocess", "Popen", f"touch {marker}", how=how), HOSTILE
    touch = f"touch {marker}".encode()
    yield "only_named", b"\x80\x02cos\nsystem\n.", HOSTILE
    yield (
        "call_of_a_call",
        b"\x80\x02cfunctools\npartial\n(cos\nsystem\nX"
        + struct.pack("<I", len(touch))
        + touch
        + b"tR)R.",
        HOSTILE,
    )
    yield "call_of_an_object", b"\x80\x02cmylib\nThing\n)R)R.", HOSTILE
    yield "class_changed", b"\x80\x02ctorch\nTensor\n}U\x0c__setstate__cos\nsystem\nsb.", HOSTILE
    yield "class_changed_harmlessly", b"\x80\x02cmylib\nThing\n}U\x01aK\x01sb.", HOSTILE
    yield (
        "getattr_dunder",
        b"\x80\x02c__builtin__\ngetattr\n(cmylib\nThing\nU\x0b__globals__tR.",
        HOSTILE,
    )
    yield "global_from_numbers", b"\x80\x04K\x01K\x02\x93.", HOSTILE
    yield "map_system", b"\x80\x02cbuiltins\nmap\n(cos\nsystem\n]U\x02lsatR.", HOSTILE
    yield "before_garbage", call("os", "system", "x")[:-1] + b"\xff\xff\xff", HOSTILE
    yield "before_the_end", call("os", "system", "x")[:-1], HOSTILE
    yield (
        "reduce_ex_type",
        b"\x80\x02cbuiltins\ntype\n(U\x01X)}tR.",
        ("limit_exceeded", "hostile_pickle"),
    )
    yield "unknown_function", call("mylib.tools", "rebuild"), ("unknown_call",)
    yield "extension", b"\x80\x02\x82\x07.", ("unknown_call",)
    yield "empty_stack", b"\x80\x02.", BROKEN
    yield "no_memo", b"\x80\x02h\x07.", BROKEN
    yield "huge_text", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", BROKEN
    yield "huge_bytes", b"\x80\x04\x8e" + struct.pack("<Q", (1 << 63) + 5) + b"x.", BROKEN
    yield (
        "huge_number",
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".",
        BROKEN,
    )
    yield "negative_number", b"\x80\x02\x8b" + struct.pack("<i", -5) + b".", BROKEN
    yield (
        "zeros_on_demand",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R.",
        BROKEN,
    )
    yield "deep_lists", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", BROKEN
    yield "deep_tuples", b"\x80\x02)" + b"\x85" * 100_000 + b".", BROKEN
    yield "deep_key", b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.", ()
    yield "deep_marks", b"\x80\x02" + b"(" * 200_000 + b".", BROKEN
    yield (
        "laughs",
        b"\x80\x02]q\x00"
        + b"".join(
            b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(100)
        )
        + b".",
        (),
    )
    yield "cycle", b"\x80\x02]q\x00h\x00a.", ()
    yield "dict_cycle", b"\x80\x02}q\x00U\x01ah\x00s.", ()
    yield "out_of_band", b"\x80\x05\x97.", BROKEN
    yield "get_text", b"\x80\x02gabc\n.", BROKEN


def archives(marker: str) -> Iterator[Case]:
    """Archives whose directory lies."""
    good = io.BytesIO()
    torch.save({"w": torch.ones(64)}, good)
    raw = good.getvalue()
    bomb = torch_zip(b"\x80\x02}.", method=zipfile.ZIP_DEFLATED)
    yield Case("deflate_bomb", _bomb(), ("zip_bomb",))
    yield Case("lying_bomb", _lying_bomb(), ("zip_bomb", "truncated"))
    yield Case("overlap", _overlap(), ("zip_bomb",))
    yield Case("traversal", _named("../../etc/passwd"), ("unsafe_name",))
    yield Case("absolute", _named("/etc/passwd"), ("unsafe_name",))
    yield Case("drive", _named("C:/windows/x"), ("unsafe_name",))
    yield Case("control", _named("a\x1b[2Jb"), ("unsafe_name",))
    yield Case("no_checkpoint", _named("readme.txt", with_pickle=False), BROKEN)
    yield Case("truncated_zip", raw[: len(raw) // 2], BROKEN)
    yield Case("no_directory", raw[:-30], BROKEN)
    yield Case("only_head", raw[:40], BROKEN)
    yield Case("empty_zip", b"PK\x05\x06" + bytes(18), BROKEN)
    yield Case("count_lies", raw[:-12] + b"\x34\x12" + raw[-10:], BROKEN)
    yield Case("missing_storage", torch_zip(_data_pkl(raw)), BROKEN)
    yield Case("short_storage", torch_zip(_data_pkl(raw), {"0": bytes(17)}), BROKEN)
    yield Case(
        "packed_evil", torch_zip(pickle.dumps(Evil(marker)), method=zipfile.ZIP_DEFLATED), HOSTILE
    )
    yield Case("packed_good", bomb, ())
    yield Case("second_pickle", _second_pickle(marker), HOSTILE)
    outer = pickle.dumps({"w": torch.ones(3)})
    nested = call("torch.storage", "_load_from_bytes")
    inner = torch_zip(pickle.dumps(Evil(marker)))
    embedded = b"B" + struct.pack("<I", len(inner)) + inner
    yield Case(
        "evil_inside_bytes", nested.replace(b"(tR.", b"(" + embedded + b"tR."), HOSTILE, ".pkl"
    )
    yield Case("good_inside_bytes", outer, (), ".pkl")


def _data_pkl(raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))


def _second_pickle(marker: str) -> bytes:
    """One innocent pickle for scanners, another one for the loader."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil(marker)))
        archive.writestr("a/data.pkl", b"\x80\x02}.")
    return out.getvalue()


def _named(name: str, with_pickle: bool = True) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        if with_pickle:
            archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr(name, b"x")
    return out.getvalue()


def _bomb(size: int = 1 << 30) -> bytes:
    """A gigabyte of zeros in a megabyte, as the weights of a tensor."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    block = engine.compress(zeros) + engine.flush(zlib.Z_FULL_FLUSH)
    packed = block * (size >> 20) + engine.flush()
    pickled = _data_pkl_for(size // 4)
    return _assemble(
        [("archive/data.pkl", 0, pickled, len(pickled)), ("archive/data/0", 8, packed, size)]
    )


def _lying_bomb() -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = engine.compress(bytes(1 << 22)) + engine.flush()
    pickled = _data_pkl_for(256)
    return _assemble(
        [("archive/data.pkl", 0, pickled, len(pickled)), ("archive/data/0", 8, packed, 1024)]
    )


def _data_pkl_for(count: int) -> bytes:
    good = io.BytesIO()
    torch.save({"w": torch.ones(64)}, good)
    old = b"K@t"  # 64 elements, the end of the persistent id
    pickled = _data_pkl(good.getvalue())
    assert old in pickled
    return pickled.replace(old, b"J" + struct.pack("<i", count) + b"t")


def _assemble(entries: list[tuple[str, int, bytes, int]]) -> bytes:
    """A zip written by hand: (name, method, packed bytes, announced size)."""
    body, directory = b"", b""
    for name, method, packed, size in entries:
        raw = name.encode()
        fields = struct.pack("<HHHHHIII", 20, 0, method, 0, 0, 0, len(packed), size)
        directory += (
            b"PK\x01\x02\x14\x00"
            + fields
            + struct.pack("<HHHHHII", len(raw), 0, 0, 0, 0, 0, len(body))
            + raw
        )
        body += b"PK\x03\x04" + fields + struct.pack("<HH", len(raw), 0) + raw + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


def _overlap() -> bytes:
    """A thousand entries that are all the same bytes."""
    pickled = b"\x80\x02}."
    data = _assemble(
        [("archive/data.pkl", 0, pickled, len(pickled)), ("archive/data/0", 0, bytes(1000), 1000)]
    )
    directory_at = data.index(b"PK\x01\x02")
    end_at = data.index(b"PK\x05\x06")
    second = data.index(b"PK\x01\x02", directory_at + 4)
    clones = b"".join(
        data[second:end_at].replace(b"data/0", b"data/" + bytes([65 + i])) for i in range(20)
    )
    directory = data[directory_at:end_at] + clones
    end = struct.pack("<HHHHIIH", 0, 0, 22, 22, len(directory), directory_at, 0)
    return data[:directory_at] + directory + b"PK\x05\x06" + end


def safetensors_file(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + body


def safetensors_cases() -> Iterator[Case]:
    """Headers that lie."""

    def entry(shape, start, end, dtype="F32"):
        return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

    def case(name, header, body=b"", length=None):
        return Case(f"st_{name}", safetensors_file(header, body, length), BROKEN, ".safetensors")

    yield case("too_long", {"w": entry([2], 0, 8)}, bytes(8), 1 << 39)
    yield case("header_beyond_file", {"w": entry([2], 0, 8)}, b"", 4000)
    yield case("beyond", {"w": entry([1000], 0, 4000)}, bytes(8))
    yield case("overlap", {"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12))
    yield case("hole", {"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12))
    yield case("tail", {"a": entry([1], 0, 4)}, bytes(100))
    yield case("backwards", {"a": entry([1], 8, 4)}, bytes(12))
    yield case("shape_lies", {"a": entry([7], 0, 4)}, bytes(4))
    yield case("negative", {"a": entry([-1], 0, 4)}, bytes(4))
    yield case("float_shape", {"a": entry([1.0], 0, 4)}, bytes(4))
    yield case("overflow", {"a": entry([1 << 61, 1 << 61, 8], 0, 4)}, bytes(4))
    yield case("bool", {"a": entry([True], 0, 4)}, bytes(4))
    yield case("not_json", b"{" + b"x" * 30)
    yield case(
        "twice",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    )
    yield case("deep", b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
    yield case("many", b'{"a":[' + b"[]," * 4_500_000 + b"[]]}")
    yield case("list_entry", {"a": [1, 2, 3]})
    yield Case(
        "st_unknown_dtype",
        safetensors_file({"a": entry([1], 0, 4, "F99")}, bytes(4)),
        ("not_scanned",),
        ".safetensors",
    )


def other_cases() -> Iterator[Case]:
    import numpy as np

    def npy(header: bytes, body: bytes = b"") -> bytes:
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body

    objects = io.BytesIO()
    np.save(objects, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    yield Case("npy_objects", objects.getvalue(), BROKEN, ".npy")
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"
    yield Case("npy_huge", npy((header % "999999999999,").encode()), BROKEN, ".npy")
    yield Case("npy_digits", npy((header % ("9" * 500 + ",")).encode()), BROKEN, ".npy")
    yield Case(
        "npy_code",
        npy(b"{'descr': __import__('os').system('x'), 'fortran_order': False, 'shape': ()}"),
        BROKEN,
        ".npy",
    )
    yield Case("npy_parens", npy(b"(" * 60_000), BROKEN, ".npy")
    yield Case("empty", b"", BROKEN)
    yield Case("zeros", bytes(5000), BROKEN)
    yield Case("text", b"configuration of the run\nlearning rate\n", BROKEN)
    yield Case("noise", bytes(range(255, 0, -1)) * 20, BROKEN)
    yield Case(
        "lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n", BROKEN
    )
    good = io.BytesIO()
    torch.save({"w": torch.ones(64)}, good, _use_new_zipfile_serialization=False)
    raw = good.getvalue()
    for part in (3, 5, 7):
        yield Case(f"legacy_cut_{part}", raw[: len(raw) * part // 8], BROKEN, ".pth")
    at = len(raw) - 64 * 4 - 8
    yield Case(
        "legacy_count", raw[:at] + struct.pack("<q", 1 << 50) + raw[at + 8 :], BROKEN, ".pth"
    )
    yield Case("legacy_negative", raw[:at] + struct.pack("<q", -1) + raw[at + 8 :], BROKEN, ".pth")


def corpus(marker: str) -> list[Case]:
    """Every case. Nothing in it may create the file `marker`."""
    cases = []
    for name, data, codes in pickles(marker):
        cases.append(Case(f"plain_{name}", data, codes, ".pkl" if data[:1] == b"\x80" else ".pt"))
        cases.append(Case(f"zip_{name}", torch_zip(data), codes))
    cases += [*archives(marker), *safetensors_cases(), *other_cases()]
    return cases


def write_corpus(folder: Path, marker: str) -> dict[Path, Case]:
    written = {}
    for i, case in enumerate(corpus(marker)):
        path = folder / f"{i:03d}{case.suffix}"
        path.write_bytes(case.data)
        written[path] = case
    return written
