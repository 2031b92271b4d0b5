"""Forms of whole training scripts: what a step was computed from is overwritten, changed, or made in another function."""

import json
import textwrap

import pytest
from tests.launch import forked

from stayfinite.remedies import apply_patch, read_patch

NEXT_BATCH_FETCHED = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def get_batch():
        x = torch.randn(8, 4)
        return x, x.sum(1, keepdim=True)

    X, Y = get_batch()
    it = 0
    while it < 20:
        for group in optimizer.param_groups:
            group["lr"] = 1e30 * min(1.0, (it + 1) / 4)
        loss = (model(X) - Y).square().mean()
        X, Y = get_batch()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        it += 1
    print("final", loss.item())
"""

LENGTHS_CHANGED_IN_PLACE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    rows = [(torch.randn(12, 5), torch.randint(1, 4, (3 if i != 9 else 11,))) for i in range(24)]

    def collate(batch):
        x = torch.stack([row for row, _ in batch], 1)
        shares = torch.tensor([1.0 if i % 2 else 0.75 for i in range(len(batch))])
        return x, torch.cat([y for _, y in batch]), shares, torch.tensor([len(y) for _, y in batch])

    def is_valid(value):
        return value == value and abs(value) != float("inf")

    model, criterion = nn.Linear(5, 4), nn.CTCLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for data in DataLoader(rows, batch_size=4, collate_fn=collate):
        x, targets, shares, target_lengths = data
        lengths = shares.mul_(len(x)).int()
        loss = criterion(model(x).log_softmax(-1), targets, lengths, target_lengths)
        if is_valid(loss.item()):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
    print("final", last)
"""

SCHEDULE_THAT_IS_CALLED = """
    import numpy as np
    import torch
    from torch import nn

    class Poly:
        def __init__(self, optimizer, base, total):
            self.optimizer, self.base, self.total = optimizer, base, total

        def __call__(self, step):
            rate = self.base * np.power(1 - step / self.total, 0.9)
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = Poly(optimizer, 0.05, 8)
    for step in range(14):
        schedule(step)
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

SCALE_OF_AN_OPTION = """
    import argparse
    import torch
    from torch import nn

    class HalfOptimizer:
        def __init__(self, optimizer, static_loss_scale=1.0):
            self.optimizer, self.loss_scale = optimizer, static_loss_scale
            self.half = [p for g in optimizer.param_groups for p in g["params"]]
            self.master = [p.detach().float().requires_grad_() for p in self.half]
            optimizer.param_groups[0]["params"] = self.master

        def backward(self, loss):
            (loss.float() * self.loss_scale).backward()
            for p, m in zip(self.half, self.master):
                m.grad = p.grad.float() / self.loss_scale
                p.grad = None

        def step(self):
            self.optimizer.step()
            with torch.no_grad():
                for p, m in zip(self.half, self.master):
                    p.copy_(m)

    parser = argparse.ArgumentParser()
    parser.add_argument("--static-loss-scale", type=float, default=16777216.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    optimizer = HalfOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), args.static_loss_scale)
    data = torch.randn(64, 6)
    for x in data.split(8):
        loss = (model(x.half()).float() - x[:, :1]).square().mean()
        optimizer.backward(loss)
        optimizer.step()
    print("final", loss.item())
"""

MADE_BEFORE_ITS_LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def update(x, returns):
        with torch.no_grad():
            advantage = returns - model(x).squeeze(-1)
        advantage = (advantage - advantage.mean()) / advantage.std()
        for _ in range(3):
            loss = -(model(x).squeeze(-1).tanh() * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    for episode in range(8):
        n = 1 if episode == 5 else 6
        last = update(torch.randn(n, 3), torch.randn(n))
    print("final", last)
"""

ASSERTED_IN_THE_FIRST_STEP = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.out = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            weight = torch.exp(-self.score(x) * 40)
            pooled = (weight * x).sum(1)
            assert not torch.isnan(pooled).any()
            pooled = pooled / weight.sum(1)
            assert not torch.isnan(pooled).any()
            return self.out(pooled)

    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(x):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    data = torch.randn(6, 8, 5, 4)
    data[0, 0, :3] *= torch.tensor([0.0, 60.0, -60.0])[:, None]
    data[0, 1] = -60.0 * model.score.weight.detach().sign()
    data[0, 2] = 60.0 * model.score.weight.detach().sign()
    for x in data:
        last = train(x)
    print("final", last)
"""

RATE_SET_BY_A_FUNCTION = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    def adjust_learning_rate(optimizer, epoch, base):
        rate = base * epoch if epoch < 1 else base
        for group in optimizer.param_groups:
            if "scale" in group:
                group["lr"] = rate * group["scale"]
            else:
                group["lr"] = rate

    def train(model, loader, optimizer, base):
        for step, x in enumerate(loader):
            adjust_learning_rate(optimizer, step / 8, base)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    base = 40 * 8 / 64
    optimizer = torch.optim.SGD(model.parameters(), lr=base, momentum=0.9)
    print("final", train(model, DataLoader(torch.randn(160, 4), batch_size=8), optimizer, base))
"""

RESUMED_IN_A_CLASS = """
    import torch
    from torch import nn

    class Trainer:
        def __init__(self, rate):
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)

        def resume(self, path):
            state = torch.load(path)
            self.model.load_state_dict(state["model"])

        def fit(self, steps):
            for _ in range(steps):
                x = torch.randn(16, 4)
                loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
            return loss.item()

    saved = Trainer(1e-3)
    parts = ("model", "optimizer", "scheduler")
    torch.save({p: getattr(saved, p).state_dict() for p in parts}, "last.pt")
    del saved
    trainer = Trainer(2.0)
    trainer.resume("last.pt")
    print("final", trainer.fit(40))
"""


def run(script, folder):
    text = textwrap.dedent(script).lstrip()
    (folder / "train.py").write_text(text)
    forked(["-m", "stayfinite", "run", "--run-dir", "run", "train.py"], folder)
    first, *_ = sorted((folder / "run" / "incidents").glob("*/incident.json"))
    return text, json.loads(first.read_text())


@pytest.mark.parametrize(
    ("script", "cause", "added"),
    [
        (LENGTHS_CHANGED_IN_PLACE, "infeasible_target", "zero_infinity=True"),
        (SCHEDULE_THAT_IS_CALLED, "bad_schedule", "np.power(max("),
        (SCALE_OF_AN_OPTION, "loss_scaling", '"--static-loss-scale", type=float, default=4096.0'),
        (MADE_BEFORE_ITS_LOOP, "empty_reduction", "advantage.std(correction=min(1, "),
        # One bound alone does not survive what comes behind the statement that raised.
        (ASSERTED_IN_THE_FIRST_STEP, "exp_overflow", ".clamp("),
        (RATE_SET_BY_A_FUNCTION, "lr_divergence", 'group["lr"] = min(rate, '),
        (
            RESUMED_IN_A_CLASS,
            "resume_mismatch",
            'self.scheduler.load_state_dict(state["scheduler"])',
        ),
    ],
    ids=lambda value: "" if "\n" in value else None,
)
def test_a_script_of_this_form_is_repaired_by_its_proved_diff(script, cause, added, tmp_path):
    text, incident = run(script, tmp_path)
    assert incident["diagnosis"]["cause"] == cause
    fixes = incident["diagnosis"]["fixes"]
    fix = next(f for f in fixes if f["status"] == "proved" and f["diff"])
    changed = apply_patch(text, read_patch(fix["diff"]))
    assert added in changed
    (tmp_path / "train.py").write_text(changed)
    done = forked(["train.py"], tmp_path)
    assert done.code == 0, done.err
    assert float(done.out.split()[-1]) < 20.0  # not NaN either


def test_a_step_whose_batch_was_fetched_anew_before_its_backward_is_traced_on_the_next_batch(
    tmp_path,
):
    _, incident = run(NEXT_BATCH_FETCHED, tmp_path)
    assert incident["diagnosis"]["cause"] == "lr_divergence"


OVERFLOW_OF_PYTHON = """
    import math
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    total = 0.0
    for step in range(1, 30):
        x = torch.randn(8, 4)
        loss = (model(x) - 1).abs().mean()
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-1e20)
        total += loss.item()
        if step % 5 == 0:
            print("perplexity", math.exp(total / 5))
"""


def test_an_overflow_of_pythons_numbers_tells_of_the_divergence_behind_it(tmp_path):
    _, incident = run(OVERFLOW_OF_PYTHON, tmp_path)
    assert incident["diagnosis"]["cause"] == "lr_divergence"
    assert "p.data.add_" in incident["location"]["culprit"]["source"]
