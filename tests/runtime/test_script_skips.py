"""Scripts that leave out a bad step themselves, as the troubleshooting guides advise, and still want the reason."""

import pytest

from stayfinite.records import Incident

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.rand(64, 4) + 0.5
x[20, 2] = x[44, 1] = 0.0
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    for i, (a, y) in enumerate(DataLoader(TensorDataset(x, torch.rand(64)), 8)):
        EARLY
        loss = (FORWARD - y).pow(2).mean()
        if torch.isnan(loss) or torch.isinf(loss):
            print("skipping batch", i)
            continue
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            print("bad gradient", i)
            LATE
            continue
        optimizer.step()
        optimizer.zero_grad()
    print("epoch", epoch, model.weight.sum().item())
"""
LOSS = "model(torch.log(a)).squeeze(-1)"
ROOT = "torch.sqrt((model(a).squeeze(-1) * a.prod(-1)).abs())"


@pytest.fixture
def run(nursery, tmp_path):
    def run(text):
        (tmp_path / "train.py").write_text(text)
        plain = nursery.run(["train.py"], tmp_path)
        guarded = nursery.run(["-m", "stayfinite", "run", "--run-dir", "r", "train.py"], tmp_path)
        assert guarded.out == plain.out and guarded.code == plain.code == 0
        found = sorted((tmp_path / "r" / "incidents").glob("*/incident.json"))
        return [Incident.from_json(p.read_text()) for p in found], guarded.err

    return run


def text(forward, early="optimizer.zero_grad()", late="pass"):
    return TRAIN.replace("FORWARD", forward).replace("EARLY", early).replace("LATE", late)


@pytest.mark.parametrize(
    ("script", "op", "symptom"),
    [
        (text(LOSS), "aten.log", "loss"),
        (text(ROOT), "SqrtBackward0", "gradient"),
        (text(ROOT, early="pass", late="optimizer.zero_grad()"), "SqrtBackward0", "gradient"),
    ],
    ids=["loss", "gradient", "dropped gradient"],
)
def test_what_the_script_leaves_out_is_located_and_nothing_else_changes(run, script, op, symptom):
    incidents, err = run(script)
    first = incidents[0]
    assert first.event.step == 2
    assert (first.location.op, first.event.symptom) == (op, symptom)
    assert "loss = (" in first.location.source
    assert first.action.kind == "none" and "does not train on it" in first.action.detail
    assert "4 incidents in 16 steps" in err  # batches 2 and 5 of two epochs, each reported once
    assert "nothing is trained on its data" not in err


def test_a_training_in_which_no_step_is_ever_taken_is_located_too(run):
    always = text("model(a).squeeze(-1) * 0 + torch.sqrt(0 * model(a).squeeze(-1))").replace(
        "range(2)", "range(1)"
    )
    incidents, err = run(always)
    assert incidents[0].location.op == "SqrtBackward0" and "8 incidents in 8 steps" in err


def test_a_batch_left_out_while_gradients_are_accumulated_is_reported_and_the_others_go_on(run):
    script = text(LOSS, early="pass").replace(
        "optimizer.step()", "if i % 2 == 0: continue\n        optimizer.step()"
    )
    incidents, err = run(script)
    assert [i.event.step for i in incidents][:1] == [2] and incidents[0].location.op == "aten.log"
    assert "stayfinite: 4 incidents in" in err


HEALTHY = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
train, other = DataLoader(torch.rand(48, 4), 4), DataLoader(torch.rand(16, 4), 4)
for i, x in enumerate(train):
    if i == 3:
        continue  # nothing is computed from this batch
    loss = model(x).pow(2).mean() / 2
    loss.backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
for x in other:  # a figure of an evaluation, which nobody trains on
    ratio = model(x).sum() * 0 + torch.tensor(float("inf"))
print(model.weight.sum().item())
"""


def test_accumulation_and_batches_without_a_loss_are_no_skips(run):
    incidents, err = run(HEALTHY)
    assert (incidents, err) == ([], "")
