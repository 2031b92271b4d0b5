"""A script that leaves its bad steps out by itself: gradients set to zero, a hand-made update passed by, a compiled model."""

import torch


def batches():
    for i in range(7):
        x = torch.randn(8, 4)
        if i == 3:
            x[0, 0] = float("nan")
        yield x


def zeroed():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches():
        loss = model(x).pow(2).mean()
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        print("zeroed", model.weight.sum().item())


def by_hand():
    model = torch.nn.Linear(4, 1, bias=False)
    for x in batches():
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if torch.isfinite(loss):
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad
        print("by hand", model.weight.sum().item())


def compiled():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    faster = torch.compile(model, backend="aot_eager")
    for x in batches():
        optimizer.zero_grad()
        loss = faster(x).pow(2).mean()
        loss.backward()
        if torch.isfinite(loss):
            optimizer.step()
        print("compiled", model[0].weight.sum().item())


torch.manual_seed(0)
zeroed()
by_hand()
compiled()
