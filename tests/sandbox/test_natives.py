"""Writers that pass Python's own `open` by are redirected too."""

import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys

import pytest
from tests.ladder.helpers import tree
from tests.launch import environment

pytestmark = pytest.mark.slow

NATIVES = """
import pathlib, sqlite3, sys
import numpy as np, safetensors.numpy, safetensors.torch, torch
from stayfinite.sandbox import redirect_for_good
redirect_for_good(sys.argv[1])
torch.save({"a": torch.ones(2)}, "old.pt")
print(torch.load("old.pt")["a"].sum().item(), torch.load("old.pt", mmap=True)["a"].sum().item())
safetensors.torch.save_file({"a": torch.ones(3)}, "new.safetensors")
safetensors.numpy.save_file({"a": np.ones(3)}, "old.safetensors")
torch.jit.script(torch.nn.Linear(2, 2)).save("scripted.pt")
torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save("traced.pt")
torch.jit.save(torch.jit.trace(torch.sqrt, torch.ones(1, 2)), "traced_function.pt")
np.save("a.npy", np.ones(3))
np.ones(2).tofile("b.bin")
grown = np.memmap("data.bin", dtype=np.uint8)
grown[:] = 7
print(grown.sum(), np.load("a.npy").sum(), np.fromfile("b.bin").sum())
made = np.memmap("made.bin", dtype=np.uint8, mode="w+", shape=(4,))
made[:] = 1
made.flush()
print(np.memmap("made.bin", dtype=np.uint8).sum())
torch.from_file("data.bin", shared=True, size=4, dtype=torch.uint8).fill_(9)
torch.from_file("shared.bin", shared=True, size=4, dtype=torch.uint8).fill_(9)
base = sqlite3.connect("base.db")
base.execute("create table t (x)")
base.close()
for uri, value in (("file:base.db", 1), ("file:old.db?mode=rw", 2)):
    base = sqlite3.connect(uri, uri=True)
    base.execute(f"insert into t values ({value})")
    base.commit()
    print(base.execute("select x from t").fetchall())
    base.close()
print(sqlite3.connect("file:old.db?mode=ro", uri=True).execute("select x from t").fetchall())
try:
    sqlite3.connect("large.db").execute("insert into t values (1)")
except sqlite3.OperationalError as e:
    print(e)
print(sorted(p.name for p in pathlib.Path(".").iterdir()))
"""


def test_native_writers_are_redirected(tmp_path):
    users = tmp_path / "users"
    users.mkdir()
    for name in ("old.pt", "old.safetensors", "data.bin"):
        (users / name).write_bytes(b"abcd")
    base = sqlite3.connect(users / "old.db")
    base.execute("create table t (x)")
    base.close()
    shutil.copy(users / "old.db", users / "large.db")
    os.truncate(users / "large.db", (1 << 28) + 1)
    before = tree(users)
    (tmp_path / "redirected").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", NATIVES, str(tmp_path / "redirected")], cwd=users, env=environment(),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tree(users) == before
    assert done.stdout.splitlines()[:-1] == [
        "2.0 2.0", "28 3.0 2.0", "4", "[(1,)]", "[(2,)]", "[(2,)]",
        "attempt to write a readonly database",
    ]  # fmt: skip
    names = ["a.npy", "b.bin", "base.db", "data.bin", "large.db", "made.bin"]
    names += ["new.safetensors", "old.db", "old.pt", "old.safetensors", "scripted.pt", "shared.bin"]
    names += ["traced.pt", "traced_function.pt"]
    assert done.stdout.splitlines()[-1] == str(names)
    redirected = pathlib.Path(str(tmp_path / "redirected" / "files") + str(users))
    assert sorted(p.name for p in redirected.iterdir()) == [
        n for n in names if n not in ("data.bin", "large.db")
    ]
