"""Whole scripts whose repair is more than a line: run, read, changed by the proved diff, and trained again."""

import json
import textwrap

import pytest
from tests.launch import forked

from stayfinite.remedies import apply_patch, read_patch

LOSS_SCALE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Trainer:
        def __init__(self, model, loss_scale=2.0**24):
            self.model = model
            self.loss_scale = loss_scale
            self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x).float(), y)
            (loss * self.loss_scale).backward()
            for p in self.model.parameters():
                p.grad.div_(self.loss_scale)
            self.optimizer.step()
            return loss.item()

    torch.manual_seed(0)
    x = torch.randn(64, 8)
    trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    for xb, yb in DataLoader(TensorDataset(x, 3 * x[:, :1]), batch_size=8):
        loss = trainer.step(xb, yb)
    print("final", loss)
"""

STEP_BESIDE_THE_SCALER = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11)
    use_amp = True
    for i in range(12):
        x = torch.randn(8, 6) * (60 if i == 7 else 1)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp):
            out = model(x)
        loss = (out.float() - x[:, :1]).square().mean()
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
        opt.step()
    print("final", loss.item())
"""

OWN_SCHEDULE = """
    import numpy as np
    import torch
    from torch import nn

    class PolyLR:
        def __init__(self, opt, total):
            self.opt, self.total, self.count = opt, total, 0
            self.base = opt.param_groups[0]["lr"]

        def step(self):
            self.count += 1
            left = np.power(1.0 - np.float64(self.count) / self.total, 0.9)
            self.opt.param_groups[0]["lr"] = float(self.base * left)

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = PolyLR(opt, total=8)
    for i in range(14):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    print("final", loss.item())
"""

WARMUP_OF_NONE = """
    import numpy as np
    import torch
    from torch import nn

    class Warmup:
        def __init__(self, opt, rate, steps):
            self.opt, self.rate, self.steps, self.t = opt, rate, np.float32(steps), 0
            self.step()

        def get_lr(self):
            ramp = np.minimum(1.0, np.float32(self.t) / self.steps)
            return self.rate * float(ramp)

        def step(self):
            for group in self.opt.param_groups:
                group["lr"] = self.get_lr()
            self.t += 1

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = Warmup(opt, 0.05, 0)
    for i in range(14):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    print("final", loss.item())
"""

SHARES_BY_HAND = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    model, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        x = torch.randn(8, 4)
        t = torch.exp(teacher(x) / (0.001 if step == 7 else 1.0))
        t = (t / t.sum(1, keepdim=True)).detach()
        loss = -(t * torch.log_softmax(model(x), 1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

RAISED = """
    import torch
    from torch import nn
    from torch.distributions import Categorical

    def act(policy, seen):
        drawn = Categorical(logits=policy(seen / seen.abs().sum(1, keepdim=True)))
        action = drawn.sample()
        return action, drawn.log_prob(action)

    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    for step in range(12):
        seen = torch.randn(8, 4)
        seen[3] *= step != 7
        action, log_prob = act(policy, seen)
        loss = -(log_prob * (action == 1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

LONE_NODE = """
    import torch
    from torch import nn

    def mix(x, source, target):
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        scale = degree.pow(-0.5)
        sent = (scale[source] * scale[target]).unsqueeze(1) * x[source]
        return torch.zeros_like(x).index_add(0, target, sent)

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        x = torch.randn(6, 4)
        source, target = torch.randint(0, 6, (12,)), torch.arange(12) % 6
        if step == 5:
            target[target == 3], source[0] = 2, 3
        loss = (model(mix(x, source, target)) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

OWN_INDEX = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    data = torch.randn(64, 4)
    labels = data.sum(1, keepdim=True)
    data[37, 2] = float("inf")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(24):
        rows = torch.arange(8 * (step % 8), 8 * (step % 8) + 8)
        x = data[rows]
        y = labels[rows]
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

EPISODES = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def finish(log_probs, rewards):
        returns = torch.tensor(rewards)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        loss = -(torch.stack(log_probs) * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for episode in range(8):
        log_probs, rewards = [], []
        for t in range(1 if episode == 5 else 6):
            action = torch.distributions.Categorical(logits=policy(torch.randn(4)))
            drawn = action.sample()
            log_probs.append(action.log_prob(drawn))
            rewards.append(float(drawn))
        loss = finish(log_probs, rewards)
    print("final", loss)
"""


CONSTANT_COLUMN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = x[:, :1]
    x[:, 2] = 1.0
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):
        loss = (model(xb) - yb).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

SILENT_SAMPLE = """
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Waves(Dataset):
        def __init__(self):
            self.waves = np.random.default_rng(0).normal(5, 1, (64, 8)).astype("float32")
            self.waves[37] = -9.21034

        def __len__(self):
            return 64

        def __getitem__(self, i):
            wave = self.waves[i]
            spread = np.sqrt((wave * wave).mean() - wave.mean() ** 2)
            return torch.from_numpy((wave - wave.mean()) / spread)

    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in DataLoader(Waves(), batch_size=8):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

TWO_EXPONENTIALS = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu, self.log_var, self.out = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            mu, log_var = self.mu(x), self.log_var(x)
            std = torch.exp(0.5 * log_var)
            z = mu + torch.randn_like(std) * std
            return self.out(z), mu, log_var

    def loss_of(x, out, mu, log_var):
        kl = -0.5 * torch.mean(1 + log_var - mu.pow(2) - log_var.exp())
        return nn.functional.smooth_l1_loss(out, x) + 1e-4 * kl

    torch.manual_seed(0)
    table = torch.randn(96, 4)
    table[50, 3] = 4000.0
    model = VAE()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for x in DataLoader(table, batch_size=8):
        loss = loss_of(x, *model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

LATE_CLIP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    data = torch.randn(160, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5)
    limit = 0.05
    for x in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=limit)
    print("final", loss.item())
"""

SECOND_FAULT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def deviance(rate, count):
        ratio = torch.where(count > 0, count * torch.log(count / rate), torch.zeros_like(rate))
        return 2 * (ratio - (count - rate)).mean()

    torch.manual_seed(1)
    x = torch.randn(96, 4)
    count = torch.poisson(torch.exp(0.5 * x[:, 0]))
    x[70], count[70] = 0.0, 0.0
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for xb, cb in DataLoader(TensorDataset(x, count), batch_size=16):
        optimizer.zero_grad()
        loss = deviance(model(xb).squeeze(1) ** 2, cb)
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

OWN_CLIP = """
    import torch
    from torch import nn

    def clip(params, limit=1.0):
        grads = [p.grad for p in params]
        total = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        factor = limit / total
        for g in grads:
            g.mul_(factor)

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        x = torch.randn(16, 4)
        y = torch.sign(x[:, 0])
        if step == 15:
            y = 1e6 * torch.sign(model(x).squeeze(1).detach())
        loss = torch.relu(1 - y * model(x).squeeze(1)).mean()
        opt.zero_grad()
        loss.backward()
        clip(list(model.parameters()))
        opt.step()
    print("final", loss.item())
"""

BESIDE_THE_SCALER = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    G, D = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    opt_g = torch.optim.SGD(G.parameters(), lr=0.01)
    opt_d = torch.optim.SGD(D.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    bce = nn.BCEWithLogitsLoss()
    for it in range(40):
        real, fake = torch.randn(32, 2) + 1, G(torch.randn(32, 4))
        loss_d = bce(D(real), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
        opt_d.zero_grad()
        scaler.scale(loss_d).backward()
        opt_d.step()
        loss_g = bce(D(fake), torch.ones(32, 1))
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
    print("final", loss_d.item())
"""

CLASS_WEIGHTS = """
    import torch
    from torch import nn

    def class_weights(labels):
        counts = torch.bincount(labels, minlength=4).float()
        return counts.sum() / counts

    torch.manual_seed(0)
    x = torch.randn(64, 6)
    y = x[:, :3].argmax(1)
    model = nn.Linear(6, 4)
    criterion = nn.CrossEntropyLoss(weight=class_weights(y), label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(12):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

# The loss function raises before there is a loss: that iteration never comes to its step.
RAISES_BEFORE_THE_STEP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = (x[:, :1] > 0).float()
    model = nn.Linear(4, 2)
    opt = torch.optim.Adam(model.parameters(), lr=1e3)
    for epoch in range(8):
        for i in range(4):
            out = model(x[16 * i : 16 * i + 16])
            p = torch.sigmoid(out[:, :1] + torch.exp(out[:, 1:]) * torch.randn(16, 1))
            loss = nn.functional.binary_cross_entropy(p, y[16 * i : 16 * i + 16])
            opt.zero_grad()
            loss.backward()
            opt.step()
    print("final", loss.item())
"""

TWO_OPTIMIZERS = """
    import torch
    from torch import nn

    rate = float("1e9")
    torch.manual_seed(0)
    G, D = nn.Linear(4, 2), nn.Linear(2, 1)
    opt_g = torch.optim.SGD(G.parameters(), lr=rate)
    opt_d = torch.optim.SGD(D.parameters(), lr=rate)
    opt_slow = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1e-6)
    for it in range(30):
        loss_d = D(torch.randn(16, 2) + 1).square().mean() + (D(G(torch.randn(16, 4))) - 1).square().mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = D(G(torch.randn(16, 4))).square().mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    print("final", loss_d.item())
"""


SEARCH_WITHOUT_END = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    t = torch.linspace(0, 3, 24)[:, None].requires_grad_()
    opt = torch.optim.LBFGS(net.parameters(), lr=10.0, max_iter=20)

    def closure():
        opt.zero_grad()
        u = net(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        loss = (du + 2 * u + u**3).square().mean() + 10 * (net(t[:1]) - 1).square().mean()
        loss.backward()
        return loss

    for i in range(4):
        loss = opt.step(closure)
    print("final", loss.item())
"""

RESUMED_WITHOUT_ITS_OPTIMIZER = """
    import torch
    from torch import nn
    from torch.optim.lr_scheduler import LambdaLR

    torch.manual_seed(0)
    goal = torch.randn(8, 1)

    def train(model, opt, sched, steps):
        for i in range(steps):
            x = 4 * torch.randn(16, 8)
            loss = (model(x) - x @ goal).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        return loss.item()

    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    sched = LambdaLR(opt, lambda epoch: 1.0 if epoch < 10 else 0.5)
    train(model, opt, sched, 40)
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}, "ck.pt")

    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    ck = torch.load("ck.pt")
    model.load_state_dict(ck["model"])
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    sched = LambdaLR(opt, lambda epoch: 1.0)
    print("final", train(model, opt, sched, 30))
"""


@pytest.mark.parametrize(
    ("script", "remedy", "added"),
    [
        # The gradients are finite behind the backward, and made bad by a function of the script's.
        (OWN_CLIP, "floor_norm", "factor = limit / total.clamp(min="),
        (BESIDE_THE_SCALER, "scaler_step", "scaler.step(opt_d)\n    loss_g"),
        (CLASS_WEIGHTS, "fill_initial", "return (counts.sum() / counts).nan_to_num("),
        (RAISES_BEFORE_THE_STEP, "set_lr", "opt = torch.optim.Adam(model.parameters(), lr=0."),
        # Both were slower when it was seen to pass; the third is slow enough.
        (TWO_OPTIMIZERS, "set_lr", "(D.parameters(), lr=0.0"),
        (STEP_BESIDE_THE_SCALER, "step_left_to_scaler", "loss.backward()\n        opt.step()"),
        (LOSS_SCALE, "grad_scaler", "self.scaler.unscale_(self.optimizer)"),
        (OWN_SCHEDULE, "guard_schedule", "np.power(max("),
        # The formula stands in another method than the one that sets the rate.
        (WARMUP_OF_NONE, "guard_schedule", "np.float32(self.t) / max(self.steps, 1))"),
        # To bound what is divided by its own sum would give other shares.
        (SHARES_BY_HAND, "softmax_later", "t = torch.softmax(t, dim=1).detach()"),
        # The distribution raises before there is a loss; the statement that raised is run with the change.
        (RAISED, "floor_norm", "seen.abs().sum(1, keepdim=True).clamp(min="),
        (LONE_NODE, "floor_count", "scale = degree.clamp(min=1).pow(-0.5)"),
        (
            CONSTANT_COLUMN,
            "fill_values",
            "xb = torch.nan_to_num(xb, nan=0.0, posinf=0.0, neginf=0.0)",
        ),
        # The line of the data set is changed, not the loop; the samples are fetched once more for that.
        (SILENT_SAMPLE, "guard_pipeline", "(wave - wave.mean()) / np.maximum(spread, 1e-8)"),
        # To take the largest off in the divergence would hardly be seen in the loss, and be wrong.
        (TWO_EXPONENTIALS, "bound_exp_everywhere", "log_var.clamp(max="),
        (LATE_CLIP, "clip_first", "max_norm=limit)\n    optimizer.step()\n"),
        (OWN_INDEX, "drop_rows", "x, y = x[keep], y[keep]"),
        # The first batch fails already; what lies behind is another fault, in a batch that nobody has seen.
        (SECOND_FAULT, "mask_first+floor_norm", "torch.log(torch.where(count != 0, "),
        (SEARCH_WITHOUT_END, "set_line_search_fn", 'max_iter=20, line_search_fn="strong_wolfe")'),
        # A schedule that begins anew would set its own rate again.
        (
            RESUMED_WITHOUT_ITS_OPTIMIZER,
            "restore_optimizer",
            'opt.load_state_dict(ck["opt"])\nsched.load_state_dict(ck["sched"])\n',
        ),
        (EPISODES, "spread_of_one", "correction=min(1, returns.numel() - 1)"),
    ],
    ids=lambda value: "" if "\n" in value else None,
)
def test_a_script_is_repaired_by_its_proved_diff(script, remedy, added, tmp_path):
    text = textwrap.dedent(script).lstrip()
    (tmp_path / "train.py").write_text(text)
    forked(["-m", "stayfinite", "run", "--run-dir", "run", "train.py"], tmp_path)
    (first, *_) = sorted((tmp_path / "run" / "incidents").glob("*/incident.json"))
    fixes = json.loads(first.read_text())["diagnosis"]["fixes"]
    fix = next(f for f in fixes if f["status"] == "proved" and f["diff"])
    changed = apply_patch(text, read_patch(fix["diff"]))
    assert fix["remedy"] == remedy and added in changed
    (tmp_path / "train.py").write_text(changed)
    done = forked(["train.py"], tmp_path)
    assert done.code == 0, done.err
    assert float(done.out.split()[-1]) < 10.0  # not NaN either
