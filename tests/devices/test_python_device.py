"""A device of nobody's: made in Python, without float64, pinned memory and events."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stayfinite import devices

SCRIPT = Path(__file__).parent / "scripts" / "train_there.py"
SRC = Path(devices.__file__).parent


CASES = [
    ("step", "sgd", False),
    ("loop", "foreach", False),
    ("step", "capturable", False),
    ("step", "fused", True),
    ("loop", "fused", True),
]


def name_of(case):
    return " ".join(map(str, case))


@pytest.fixture(scope="module")
def trained():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(CASES)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_bad_step_is_found_and_left_out_there(trained, case):
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert trained[name_of(case)] == {
        "steps": [3],
        "op": "aten.log",
        "line": next(i for i, t in enumerate(lines, 1) if t.endswith("# HERE")),
        "cause": "domain_error",
        "device": "pydev:0",
        "finite": True,
    }


def test_nothing_names_cuda_alone():
    """But for facts that only CUDA has, and words for people."""
    allowed = {
        "preflight/environment/facts.py",
        "preflight/environment/rules.py",
        "preflight/capture/script.py",
        "checkpoint/policy.py",
        "codes/checks_setup.py",
        "runtime/warn/untrained_source.py",  # a method's name in somebody's source
    }
    named = re.compile(r"torch\.cuda|[\"']cuda[\"']")
    found = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if "lint" not in path.parts and named.search(path.read_text(encoding="utf-8"))
    }
    assert found <= allowed


def test_on_a_machine_without_accelerator_nothing_is_asked_of_one():
    if torch.accelerator.is_available():
        pytest.skip("there is one here")
    assert not devices.has_accelerator()
    assert not devices.is_accelerator_started()
    assert devices.random_states() is None
    assert devices.autocast_devices()[0] == "cpu"
    assert devices.device_name("cpu") == "" and devices.device_memory("cpu") is None


def test_a_copy_from_the_host_is_there_at_once():
    value = torch.tensor(3.0)
    copy, event = devices.copy_out(value)
    value.add_(1)
    assert copy.item() == 3.0 and event is None
