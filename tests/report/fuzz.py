"""Mutates incidents and journals and makes reports of them: no traceback, nothing of the reader's files.

python -m tests.report.fuzz --count 5000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tests.report.runs import write_run

from stayfinite.errors import StayfiniteError
from stayfinite.report.html import render_html
from stayfinite.report.journal_read import Tail
from stayfinite.report.markdown import render_markdown
from stayfinite.report.model import load_run
from stayfinite.report.watch import frame

SECRET = "SECRET-LINE"
_VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, -1e-300, float("nan"), float("inf"), "", "x" * 5000, "nan", [], {},
    [[]], {"a": 1}, [None] * 3, "\x1b[2J", "<img src=x>", [1, "inf"], 10**400,
]  # fmt: skip
_LINES = [
    b"[" * 5000, b'{"a":' * 5000, b'{"step": 1e400, "loss": 1}', b'{"step": 3, "loss": ' + b"9" * 5000 + b"}",
    b'{"step": "x"}', b'{"step": null, "loss": 2}', b"\xff\xfe", b'{"event": 3}', b'{"event": "layers"}',
    b'{"event": "layers", "step": 3, "grad": 1}', b'{"step": 5, "parts": [1]}', b'{"step": 5, "parts": {"a": []}}',
    b'{"kind": "stayfinite.journal", "session": "x"}', b'{"step": 6, "loss": {"a": 1}, "lr": [[]]}', b"null", b"7",
]  # fmt: skip


def mutate(value: Any, rnd: random.Random, secret: str) -> Any:
    """The same tree with one place changed."""
    if isinstance(value, dict) and value and rnd.random() < 0.9:
        key = rnd.choice(list(value))
        changed = dict(value)
        if rnd.random() < 0.05:
            del changed[key]
        elif key in ("file", "library_file", "path") and rnd.random() < 0.5:
            changed[key] = secret
        else:
            changed[key] = mutate(value[key], rnd, secret)
        return changed
    if isinstance(value, list) and value and rnd.random() < 0.8:
        i = rnd.randrange(len(value))
        return [*value[:i], mutate(value[i], rnd, secret), *value[i + 1 :]]
    return rnd.choice(_VALUES)


def _mutate_log(file: Path, rnd: random.Random) -> None:
    lines = file.read_bytes().split(b"\n")
    for _ in range(rnd.choice((1, 2, 5))):
        i = rnd.randrange(len(lines))
        if rnd.random() < 0.5:
            lines.insert(i, rnd.choice(_LINES))
            continue
        try:
            lines[i] = json.dumps(mutate(json.loads(lines[i]), rnd, "x")).encode()
        except ValueError:
            lines[i] = rnd.choice(_LINES)
    file.write_bytes(b"\n".join(lines))


def run(count: int, seed: int, only: int | None = None) -> list[str]:
    """What went wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_run(home / "good", 120, bad=(20, 60))
        secret = home / "secret.txt"
        secret.write_text(f"import torch\n{SECRET}\n" * 5)
        good = home / "good"
        for i in range(count) if only is None else [only]:
            rnd = random.Random(f"{seed}/{i}")
            sent = home / "sent"
            shutil.rmtree(sent, ignore_errors=True)
            shutil.copytree(good, sent)
            if rnd.random() < 0.5:
                _mutate_log(sent / "journal.jsonl", rnd)
            else:
                file = next(sent.glob("incidents/*/incident.json"))
                plain = json.loads(file.read_text())
                for _ in range(rnd.choice((1, 2, 4))):
                    plain = mutate(plain, rnd, str(secret))
                file.write_text(json.dumps(plain))
            try:
                _show(sent, wrong, i)
            except StayfiniteError:
                continue
            except Exception:
                wrong.append(f"{i}: {traceback.format_exc()[-800:]}")
    return wrong


def _show(sent: Path, wrong: list[str], number: int) -> None:
    view = load_run(sent)
    page = render_html(view) + render_markdown(view)
    json.dumps(view.to_plain(), allow_nan=False)
    if SECRET in page:
        wrong.append(f"{number}: a line of the reader's own file is in the page")
    tail = Tail(sent / "journal.jsonl")
    try:
        tail.poll()
        frame(tail.data, "sent", 100, 30)
    finally:
        tail.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz report and watch.")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only the mutant of this number")
    options = parser.parse_args()
    wrong = run(options.count, options.seed, options.only)
    print(f"{options.count} mutants with seed {options.seed}; {len(wrong)} went wrong")
    for line in wrong[:5]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
