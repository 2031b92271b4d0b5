"""What the loss depends on is computed again, the rest is not."""

import time

import numpy as np
import torch
import torch.nn.functional as F


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


class Timer:
    def __init__(self):
        self.times = []

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *error):
        self.times.append(time.monotonic() - self.start)


def loop_list_of_parts(model, optimizer, loader, *, left_out=("scale = scale * 1.0",)):
    scale = 1.0
    for x, y in loader:
        parts = []
        out = model(x)
        parts.append(F.mse_loss(out, y))
        parts.append(0.1 * out.abs().mean())
        parts += [out.pow(2).mean()]
        loss = torch.stack(parts).sum()
        scale = scale * 1.0
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def loop_parts_in_a_comprehension(model, optimizer, loader):
    for x, y in loader:
        loss = torch.stack([F.mse_loss(model(a), b) for a, b in zip(x, y)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_moved_to_a_device(model, optimizer, loader, *, taken=("x", "y")):
    device = torch.device("cpu")
    for x, y in loader:
        x, y = x.to(device).float(), y.to(device)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_normalized_in_the_body(model, optimizer, loader, *, taken=("x",)):
    for x, y in loader:
        x = (x - x.mean()) / x.std()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_skips_bad_losses_by_itself(model, optimizer, loader):
    for x, y in loader:
        if x.size(0) < 2:
            continue
        loss = F.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            print("bad")
            continue
        optimizer.zero_grad()
        loss.backward()
        if loss.isnan():
            break
        optimizer.step()


def loop_branches(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        if i % 2 == 0:
            loss = F.mse_loss(model(x), y)
        else:
            loss = F.l1_loss(model(x), y)
        if i > 1:
            loss = loss * 2
        if i >= 0:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def loop_walrus(model, optimizer, loader, *, can_bind=False):
    source = iter(loader)
    while (batch := next(source, None)) is not None:
        if (loss := F.mse_loss(model(batch[0]), batch[1])) is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def loop_carried_total(model, optimizer, loader, *, can_bind=False):
    total = torch.zeros(())
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        total = total + loss.detach()
        weight = 1 + 0 * total
        optimizer.zero_grad()
        (weight * loss).backward()
        optimizer.step()


def loop_inner_loops(model, optimizer, loader):
    for x, y in loader:
        loss = 0.0
        for _ in range(2):
            for row, goal in zip(x, y):
                if goal.item() > 100:
                    continue
                loss = loss + F.mse_loss(model(row), goal)
        k = 0
        while k < 2:
            loss = loss + 0.1 * model(x).abs().mean()
            k += 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_changed_in_place(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        out += 0.1
        out.mul_(2)
        out[0] = 0.0
        loss = F.mse_loss(out, y)
        loss += 0.1 * out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_batch_changed_in_place(model, optimizer, loader, *, taken=("x",)):
    for x, y in loader:
        x[0] += 1.0
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_labels_popped(model, optimizer, loader, *, taken=()):
    for x, y in loader:
        batch = {"x": x, "y": y}
        goal = batch.pop("y")
        loss = F.mse_loss(model(batch["x"]), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_starred_and_nested_targets(model, optimizer, loader):
    for i, batch in enumerate(loader):
        (x, *rest), n = batch, i
        [y] = rest
        loss = F.mse_loss(model(x), y) * (n + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_annotated(model, optimizer, loader):
    for x, y in loader:
        out: torch.Tensor = model(x)
        loss: torch.Tensor = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_loss_stored_on_an_object(model, optimizer, loader):
    class State:
        pass

    state = State()
    for x, y in loader:
        state.out = model(x)
        state.loss = F.mse_loss(state.out, y)
        optimizer.zero_grad()
        state.loss.backward()
        optimizer.step()


def loop_loss_stored_in_a_dict(model, optimizer, loader):
    state = {}
    for x, y in loader:
        state["out"] = model(x)
        state["loss"] = F.mse_loss(state["out"], y)
        optimizer.zero_grad()
        state["loss"].backward()
        optimizer.step()


def loop_numpy_in_the_loss(model, optimizer, loader, *, taken=("w",)):
    weights = np.ones(6)
    for x, y in loader:
        w = torch.from_numpy(np.exp(weights) / np.sum(np.exp(weights))).float()
        weights[0] += 0.1
        loss = (w[:, None] * (model(x) - y) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_no_grad_metrics(model, optimizer, loader):
    seen = {"loss": [], "n": np.zeros(1)}
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        with torch.no_grad():
            seen["loss"].append(out.mean().item())
            seen["n"] += 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_random_noise(model, optimizer, loader):
    for x, y in loader:
        torch.rand(3)
        noise = torch.randn_like(x)
        loss = F.mse_loss(model(x + 0.1 * noise), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_timed(model, optimizer, loader):
    timer = Timer()
    for x, y in loader:
        with timer:
            loss = F.mse_loss(model(x), y)
        with timer as _:
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
