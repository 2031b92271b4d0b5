"""Loops of every shape: a replay gives the same gradients, bit for bit, and nobody can feel it."""

import contextlib
import runpy
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


@dataclass
class Config:
    weight: float = 2.0
    step: int = 0


class Trainer:
    num_made = 0

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.__step = 0
        self.history = []
        self.by_name = defaultdict(int)
        self.recent = deque(maxlen=3)
        self.array = np.zeros(3)
        self.text = ""

    def compute_loss(self, x, y):
        self.__step += 1
        self.by_name["calls"] += 1
        self.history.append(self.__step)
        self.text += "."
        out = self.model(x)
        self.last = out.detach()
        return F.mse_loss(out, y)

    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.optimizer.zero_grad()
            loss = self.compute_loss(x, y)
            loss.backward()
            Trainer.num_made += 1
            self.array[0] += 1
            self.recent.append(i)
            self.__step += 1
            self.optimizer.step()

    def train_step(self, batch):
        x, y = batch
        x = x * 1.0
        self.optimizer.zero_grad()
        self.loss = self.compute_loss(x, y)
        self.loss.backward()
        self.optimizer.step()
        return self.loss.item()


def loop_plain(model, optimizer, loader, *, taken=()):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()


def loop_counts_and_prints(
    model,
    optimizer,
    loader,
    *,
    left_out=("print(i, loss.item())", "total += loss.item()", "history.append(loss.item())"),
):
    total, history = 0.0, []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        total += loss.item()
        history.append(loss.item())
        print(i, loss.item())
        loss.backward()
        optimizer.step()


def loop_while_true_with_next(model, optimizer, loader):
    source = iter(loader)
    step = 0
    while True:
        try:
            x, y = next(source)
        except StopIteration:
            break
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1


def loop_range_with_next(model, optimizer, loader):
    source = iter(loader)
    for _ in range(5):
        batch = next(source)
        x, y = batch
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_dict_batches(model, optimizer, loader, *, can_bind=True):
    for batch in loader:
        inputs = {"x": batch[0], "y": batch[1]}
        inputs = {k: v.float() for k, v in inputs.items()}
        out = model(inputs["x"])
        losses = {"main": F.mse_loss(out, inputs["y"]), "l1": 0.1 * out.abs().mean()}
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_accumulation_over_parts(model, optimizer, loader, *, taken=()):
    for x, y in loader:
        optimizer.zero_grad()
        for part, goal in zip(x.chunk(3), y.chunk(3)):
            loss = F.mse_loss(model(part), goal) / 3
            loss.backward()
        optimizer.step()


def loop_autocast(model, optimizer, loader):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = F.mse_loss(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_stepped_inside_a_with(model, optimizer, loader):
    with contextlib.suppress(KeyError):
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
                loss = F.mse_loss(model(x).float(), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def loop_tried(model, optimizer, loader):
    for x, y in loader:
        try:
            loss = F.mse_loss(model(x), y)
        except ValueError:
            continue
        try:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except RuntimeError:
            raise
        finally:
            print("done")


def loop_several_on_a_line(model, optimizer, loader):
    for x, y in loader: optimizer.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); optimizer.step(); print(1)  # fmt: skip  # noqa: E701, E702


def loop_two_losses(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        first, second = F.mse_loss(out, y), out.abs().mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()


def loop_backward_of_torch(model, optimizer, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()


def loop_gradient_penalty(model, optimizer, loader):
    for x, y in loader:
        mixed = (0.5 * x).requires_grad_(True)
        out = model(mixed)
        (grad,) = torch.autograd.grad(out.sum(), mixed, create_graph=True)
        loss = F.mse_loss(out, y) + (grad.norm(2, dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_points_that_begin_a_graph(model, optimizer, loader):
    for x, y in loader:
        points = 0.5 * x
        for p in model.parameters():
            p.requires_grad_(True)
        points.requires_grad_(True)
        out = model(points)
        (grad,) = torch.autograd.grad(out.sum(), points, create_graph=True)
        loss = F.mse_loss(out, y) + grad.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_loss_module(model, optimizer, loader):
    criterion = nn.MSELoss()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


def loop_clipped(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        print(norm)
        optimizer.step()


def loop_clipped_by_hand(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.grad.clamp_(-0.01, 0.01)
        optimizer.step()


def loop_scaled(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def loop_several_epochs(model, optimizer, loader, *, taken=()):
    for _ in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()


def loop_optimizers_in_a_list(model, optimizer, loader):
    for x, y in loader:
        for one in [optimizer]:
            one.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for one in [optimizer]:
            one.step()


def loop_two_steps_of_one_optimizer(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = model(x + 1).pow(2).mean()
        loss.backward()
        optimizer.step()


def loop_configuration_object(model, optimizer, loader):
    config = Config()
    for x, y in loader:
        config.step += 1
        loss = config.weight * F.mse_loss(model(x), y) / config.step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_method_of_a_trainer(model, optimizer, loader):
    Trainer(model, optimizer).fit(loader)


def loop_step_of_a_trainer(model, optimizer, loader):
    trainer = Trainer(model, optimizer)
    losses = []
    for batch in loader:
        losses.append(trainer.train_step(batch))


def test_a_script_is_replayed_at_its_own_level(stage, setting, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    model, optimizer, loader = setting
    runpy.run_path(str(script), {"model": model, "optimizer": optimizer, "loader": loader})
    assert stage.seen.is_exact and stage.seen.is_exact_with_batch, (stage.seen, stage.error)
    assert stage.seen.function == "<module>"


SCRIPT = """
import torch.nn.functional as F
count, log = 0, []

def compute(x, y):
    global count
    count += 1
    log.append(count)
    return F.mse_loss(model(x), y)

for i, (x, y) in enumerate(loader):
    loss = compute(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(i)
"""


def test_two_networks_that_play_against_each_other(stage, items):
    torch.manual_seed(1)
    critic, maker = nn.Linear(4, 1), nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3))
    c_optimizer = stage.optimizer(critic.parameters())
    m_optimizer = stage.optimizer(maker.parameters())
    for real, _ in stage.loader(items):
        fake = maker(torch.randn(6, 2))
        c_loss = critic(fake.detach()).mean() - critic(real).mean()
        c_optimizer.zero_grad()
        c_loss.backward()
        c_optimizer.step()
        loss = -critic(maker(torch.randn(6, 2))).mean()
        m_optimizer.zero_grad()
        loss.backward()
        m_optimizer.step()
    assert stage.seen.is_exact and stage.seen.is_exact_with_batch, (stage.seen, stage.error)
    assert stage.seen.num_steps == 2
