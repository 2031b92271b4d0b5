"""Our own knobs really turn; writers that pass `open` by are led aside too."""

import json
import pathlib
import subprocess
import sys

import pytest
from tests.ladder.helpers import tree
from tests.launch import environment

pytestmark = pytest.mark.slow

KNOBS = """
import json, os, sys
import torch
from stayfinite.ladder.apply import Seen, turn_knobs

def show(knobs):
    turn_knobs(knobs)
    seen = Seen()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    if "precision" in knobs:
        model = model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", growth_interval=7)
    x = torch.ones(2, 3, dtype=model.weight.dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    scaler.scale(y.float().sum() * 100).backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    moved = round((model.weight - before).norm().item(), 4)
    interval = scaler.get_growth_interval() if scaler.is_enabled() else None
    found = [y.dtype, model.weight.dtype, seen.has_autocast, scaler.get_scale(), interval, moved]
    print(json.dumps([str(f) for f in found]), flush=True)

for knobs in json.loads(sys.argv[1]):  # a knob stays turned, so each has a process of its own
    pid = os.fork()
    if pid == 0:
        show(knobs)
        os._exit(0)
    os.waitpid(pid, 0)
"""
PLAIN = ["torch.bfloat16", "torch.float32", "True", "65536.0", "7", "346.4102"]
TURNED = [
    ({}, {}),
    ({"autocast": "off"}, {0: "torch.float32", 2: "False", 3: "1.0", 4: "None"}),
    (
        {"precision": "fp32", "clip": "2"},
        {0: "torch.float32", 3: "1.0", 4: "None", 5: "1.7321"},
    ),
    (
        {"lr": "0.1x", "init_scale": "1024", "growth_interval": "3"},
        {3: "1024.0", 4: "3", 5: "34.641"},
    ),
    ({"scaler": "off", "clip": "1"}, {3: "1.0", 4: "None", 5: "0.866"}),
]


def test_each_knob_turns_what_it_says_and_nothing_else(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KNOBS, json.dumps([k for k, _ in TURNED])], cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [[other.get(i, v) for i, v in enumerate(PLAIN)] for _, other in TURNED]


NATIVES = """
import pathlib, sqlite3, sys
import numpy as np, safetensors.numpy, safetensors.torch, torch
from stayfinite.ladder.aside import Aside
from stayfinite.ladder.natives import lead_aside
aside = Aside(sys.argv[1])
aside.install()
lead_aside(aside)
torch.save({"a": torch.ones(2)}, "old.pt")
print(torch.load("old.pt")["a"].sum().item(), torch.load("old.pt", mmap=True)["a"].sum().item())
safetensors.torch.save_file({"a": torch.ones(3)}, "new.safetensors")
safetensors.numpy.save_file({"a": np.ones(3)}, "old.safetensors")
torch.jit.script(torch.nn.Linear(2, 2)).save("scripted.pt")
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
print(sorted(p.name for p in pathlib.Path(".").iterdir()))
"""


def test_native_writers_are_led_aside(tmp_path):
    users = tmp_path / "users"
    users.mkdir()
    for name in ("old.pt", "old.safetensors", "data.bin"):
        (users / name).write_bytes(b"abcd")
    before = tree(users)
    (tmp_path / "aside").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", NATIVES, str(tmp_path / "aside")], cwd=users, env=environment(),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tree(users) == before
    assert done.stdout.splitlines()[:-1] == ["2.0 2.0", "28 3.0 2.0", "4"]
    names = ["a.npy", "b.bin", "base.db", "data.bin", "made.bin", "new.safetensors", "old.pt"]
    names += ["old.safetensors", "scripted.pt", "shared.bin"]
    assert done.stdout.splitlines()[-1] == str(names)
    aside = pathlib.Path(str(tmp_path / "aside" / "files") + str(users))
    assert sorted(p.name for p in aside.iterdir()) == [n for n in names if n != "data.bin"]
