"""Random bodies in a replay: the world outside is afterwards what it was."""
# ruff: noqa: SIM115  (files are opened as scripts open them)

import contextlib
import io
import json
import logging
import os
import pathlib
import queue
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
import tqdm
from tests.sandbox.test_compute import contents, originals

from stayfinite.patches import table
from stayfinite.sandbox import computing_only

USERS_QUEUE = queue.Queue()


def wander(r):
    os.chdir(r.choice(["tree", "..", "tree/a"]))


def swap_stdout(r):
    sys.stdout = io.StringIO()


def leave_a_catcher_open(r):
    warnings.catch_warnings(record=r.random() < 0.5).__enter__()


ACTIONS = [
    lambda r: print("x", file=r.choice([sys.stdout, sys.stderr])),
    lambda r: os.write(r.choice([1, 2]), b"x"),
    lambda r: logging.getLogger("fuzz").error("x"),
    lambda r: logging.basicConfig(),
    lambda r: warnings.warn(f"w{r.randrange(3)}", UserWarning, stacklevel=r.randrange(1, 4)),
    lambda r: np.log(np.zeros(1)),
    lambda r: warnings.simplefilter(r.choice(["ignore", "always", "error"])),
    lambda r: warnings.resetwarnings(),
    leave_a_catcher_open,
    lambda r: pathlib.Path(f"f{r.randrange(3)}.txt").write_text("x"),
    lambda r: open(r.choice(["keep.txt", "tree/a.txt"]), r.choice("wa")).write("x"),
    lambda r: os.remove(r.choice(["keep.txt", "f0.txt", "absent"])),
    lambda r: os.rename(r.choice(["keep.txt", "tree"]), r.choice(["renamed", "tree/b"])),
    lambda r: shutil.rmtree("tree"),
    lambda r: shutil.copytree("tree", f"copy{r.randrange(3)}"),
    lambda r: os.makedirs("new/deep", exist_ok=True),
    lambda r: os.chmod("keep.txt", 0o600),
    lambda r: os.utime("keep.txt", (0, 0)),
    wander,
    lambda r: torch.save(torch.ones(1), r.choice(["keep.txt", "m.pt"])),
    lambda r: np.save("keep.npy", np.ones(1)),
    lambda r: tempfile.mkdtemp(),
    lambda r: os.environ.__setitem__(f"FUZZ{r.randrange(3)}", "new"),
    lambda r: os.environ.pop(f"FUZZ{r.randrange(3)}", None),
    lambda r: sys.path.append("x"),
    swap_stdout,
    lambda r: torch.set_grad_enabled(False),
    lambda r: torch.set_default_dtype(torch.float64),
    lambda r: torch.autograd.set_detect_anomaly(True),
    lambda r: torch.autocast("cpu").__enter__(),
    lambda r: np.seterr(all="raise"),
    lambda r: subprocess.run(["date"]),
    lambda r: socket.socket(),
    lambda r: threading.Thread(target=print).start(),
    lambda r: time.sleep(100),
    lambda r: os.kill(os.getpid(), 15),
    lambda r: USERS_QUEUE.get(timeout=1),
    lambda r: list(tqdm.tqdm(range(3))),
    lambda r: 1 / 0,
    lambda r: json.dump([1], open("out.json", "w")),
    lambda r: torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward(),
]


def registries():
    return {
        name: {k for k in registry if k != "version"}
        for name, module in list(sys.modules.items())
        if isinstance(registry := getattr(module, "__dict__", {}).get("__warningregistry__"), dict)
        and registry.keys() - {"version"}
    }


def world(users):
    root = logging.getLogger()
    return {
        "files": contents(users),
        "temporary": sorted(os.listdir(tempfile.gettempdir() + "/")),
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "filters": (id(warnings.filters), list(warnings.filters)),
        "show": (warnings.showwarning, warnings._showwarnmsg_impl),
        "registries": (registries(), dict(warnings.onceregistry)),
        "streams": [id(s) for s in (sys.stdout, sys.stderr, sys.stdin)],
        "stream_attributes": [sorted(getattr(s, "__dict__", {})) for s in (sys.stdout, sys.stderr)],
        "path": (id(sys.path), list(sys.path)),
        "handlers": (list(root.handlers), root.level),
        "torch": (
            torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_anomaly_enabled(),
            torch.is_autocast_enabled("cpu"),
        ),
        "numpy": np.geterr(),
        "threads": threading.active_count(),
        "bars": (tqdm.tqdm.monitor_interval, len(tqdm.tqdm._instances)),
        "queue": USERS_QUEUE.qsize(),
        "originals": {k: id(v) for k, v in originals().items()},
        "patches": table(),
    }  # fmt: skip


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("keep.txt", "tree/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("FUZZ0", "old")
    monkeypatch.chdir(tmp_path)
    USERS_QUEUE.put("batch")
    yield tmp_path
    USERS_QUEUE.get()


@pytest.mark.filterwarnings("default")
def test_a_hundred_random_bodies_change_nothing_outside(users, capfd):
    num_raised = 0
    for seed in range(100):
        r = random.Random(seed)
        before = world(users)
        try:
            with computing_only():
                for _ in range(r.randrange(1, 12)):
                    action = r.choice(ACTIONS)
                    if r.random() < 0.8:
                        with contextlib.suppress(Exception):
                            action(r)
                    else:
                        action(r)
        except Exception:
            num_raised += 1
        after = world(users)
        different = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
        assert not different, f"seed {seed}"
    assert 10 < num_raised < 90
    assert capfd.readouterr() == ("", "")
