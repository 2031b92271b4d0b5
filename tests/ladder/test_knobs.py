"""Our own knobs really turn."""

import json

import pytest
from tests.launch import forked

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
    done = forked(["-c", KNOBS, json.dumps([k for k, _ in TURNED])], tmp_path)
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    assert found == [[other.get(i, v) for i, v in enumerate(PLAIN)] for _, other in TURNED]
