"""Mutates good files of every format and scans them: no crash, no hang, no escape.

    python -m tests.checkpoint.fuzz --count 50000 --seed 1

Every mutant is made from a seed, so a failure can be made again with `--only SEED`. While a file is
scanned an audit hook watches the interpreter: running a command, importing a module, evaluating
code, opening a file for writing (but for a nameless temporary one) or a connection is an escape.
"""

from __future__ import annotations

import argparse
import io
import random
import resource
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import torch
from tests.checkpoint import samples

from stayfinite.checkpoint import scan_file
from stayfinite.checkpoint.judge import SEVERITY

SLOW_SECONDS = 10.0
MAX_GROWTH_MB = 300.0
_FORBIDDEN = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen",
    "pty.spawn", "socket.", "urllib.Request", "exec", "compile", "import", "ctypes.", "os.remove", "os.rename",
    "os.rmdir", "os.mkdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "shutil.", "pickle.find_class",
    "marshal.", "code.__new__", "function.__new__",
)  # fmt: skip
_TOKENS = [
    b"cos\nsystem\n", b"cthis\nThing\n", b"\x8c\x04this\x8c\x05Thing\x93", b"c__builtin__\neval\n", b"\x93", b"R", b"b", b"\x81", b"(", b"t", b"u", b"e", b"0", b"2",
    b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"PK\x01\x02", b"PK\x05\x06", b"PK\x03\x04", b"}", b"]",
    b"\x80\x02", b"Q", b".", b'"data_offsets":[0,99999999999]', b"\x8e", b"\x8a", b"\x8b", b"h\x00", b"q\x00",
]  # fmt: skip


class Watch:
    """Counts what a scan must never do."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.is_on:
            return
        if event.startswith(_FORBIDDEN):
            self.seen.append(f"{event} {args!r:.120}")
        elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            is_nameless = isinstance(args[0], int) or args[0] == tempfile.gettempdir()
            if not is_nameless:
                self.seen.append(f"open {args!r:.120}")


def seeds(folder: Path) -> list[tuple[str, bytes]]:
    """One small good file of every format."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for kind, (writer, dtypes) in samples.WRITERS.items():
        if kind in ("sharded", "dcp", "deepspeed"):
            continue
        place = folder / kind
        place.mkdir()
        for dtype in dtypes[:2]:
            tensors = {f"w{i}": samples.random_tensor(dtype, (3, 4), rng) for i in range(2)}
            path = writer(place, tensors)
            found.append((path.suffix, path.read_bytes()))
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=1),
    }
    found.append((".pt2", exported(folder / "x.pt2")))
    for is_legacy in (False, True):
        target = folder / f"trainer{is_legacy}.pt"
        torch.save(state, target, _use_new_zipfile_serialization=not is_legacy)
        found.append((".pt", target.read_bytes()))
    return found


def exported(path: Path) -> bytes:
    """A program of torch.export."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(torch.nn.Linear(3, 2), (torch.rand(1, 3),))
        torch.export.save(program, str(path))
    return path.read_bytes()


def mutate(data: bytes, rnd: random.Random, others: list[bytes]) -> bytes:
    """One to eight changes: bits, bytes, tokens, cuts, copies, splices."""
    raw = bytearray(data)
    for _ in range(rnd.choice((1, 1, 1, 2, 3, 5, 8))):
        if not raw:
            break
        at = rnd.randrange(len(raw))
        kind = rnd.randrange(9)
        if kind == 0:
            raw[at] ^= 1 << rnd.randrange(8)
        elif kind == 1:
            raw[at] = rnd.randrange(256)
        elif kind == 2:
            token = rnd.choice(_TOKENS)
            raw[at : at + len(token)] = token
        elif kind == 3:
            raw[at:at] = rnd.choice(_TOKENS)
        elif kind == 4:
            del raw[at : at + rnd.choice((1, 4, 64, 1000))]
        elif kind == 5:
            del raw[at:]
        elif kind == 6:
            end = at + rnd.randrange(1, 200)
            raw[at:at] = raw[at:end] * rnd.randrange(1, 4)
        elif kind == 7:
            width = rnd.choice((2, 4, 8))
            raw[at : at + width] = rnd.choice((0, 1, -1, 1 << 7, 1 << 15, (1 << 15) - 1)).to_bytes(
                8, "little", signed=True
            )[:width]
        else:
            other = rnd.choice(others)
            cut = rnd.randrange(len(other))
            raw[at : at + 100] = other[cut : cut + rnd.randrange(1, 300)]
    return bytes(raw)


def mutate_inside(data: bytes, rnd: random.Random, others: list[bytes]) -> bytes:
    """Change the pickle of an archive and pack it again, so that the change gets past the zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        parts = {n: archive.read(n) for n in names}
    victims = [n for n in names if n.endswith((".pkl", ".npy", ".json", ".pt"))]
    victim = rnd.choice(victims)
    parts[victim] = mutate(parts[victim], rnd, others)
    out = io.BytesIO()
    method = rnd.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, raw in parts.items():
            archive.writestr(name, raw)
    return out.getvalue()


def run(count: int, seed: int, only: int | None = None) -> tuple[Counter[str], list[str]]:
    """Scan `count` mutants; verdicts, and what went wrong."""
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    watch = Watch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = seeds(folder)
        others = [data for _, data in good]
        for suffix, data in good:  # everything that is loaded lazily is loaded now
            path = folder / f"warm{suffix}"
            path.write_bytes(data)
            assert scan_file(path).verdict in ("healthy", "suspicious"), path
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for i in range(count) if only is None else [only]:
            rnd = random.Random(f"{seed}/{i}")
            suffix, data = rnd.choice(good)
            path = folder / f"mutant{suffix}"
            is_inside = data[:2] == b"PK" and rnd.random() < 0.6
            path.write_bytes((mutate_inside if is_inside else mutate)(data, rnd, others))
            begin = time.process_time()
            watch.is_on = True
            try:
                report = scan_file(path, verify=i % 4 == 0)
                verdicts[report.verdict] += 1
                unknown = {f.code for f in report.findings} - set(SEVERITY)
                if unknown or any(f.code == "internal_error" for f in report.findings):
                    wrong.append(f"{i}: finding {unknown or 'internal_error'}")
            except Exception as e:
                wrong.append(f"{i}: {type(e).__name__}: {e!s:.200}")
            finally:
                watch.is_on = False
            took = time.process_time() - begin
            if took > SLOW_SECONDS:
                wrong.append(f"{i}: took {took:.1f} s")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            if peak - before > MAX_GROWTH_MB:
                wrong.append(f"{i}: {peak - before:.0f} MB more than before")
                before = peak
            if "this" in sys.modules:
                wrong.append(f"{i}: a module that only a file names was imported")
                del sys.modules["this"]
            if watch.seen:
                wrong.append(f"{i}: escaped: {watch.seen}")
                watch.seen = []
    return verdicts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the checkpoint scan.")
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the mutant of this number")
    options = parser.parse_args()
    begin = time.perf_counter()
    verdicts, wrong = run(options.count, options.seed, options.only)
    took = time.perf_counter() - begin
    print(
        f"seed {options.seed}: {sum(verdicts.values()):,} mutants in {took:.0f} s: {dict(verdicts)}; {len(wrong)} went wrong"
    )
    for line in wrong[:20]:
        print("  " + line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
