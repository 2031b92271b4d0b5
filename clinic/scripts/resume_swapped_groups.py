"""The groups of the optimizer are given in another order than in the run that saved it."""

import tempfile

import torch
from torch import nn

torch.manual_seed(0)
file = tempfile.mkdtemp() + "/state.pt"
x = torch.randn(256, 10)
y = x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3]


def build(order):
    torch.manual_seed(1)
    encoder, decoder = nn.Linear(10, 64), nn.Linear(64, 64)
    head = nn.Linear(64, 1)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "head": head})
    rates = {"encoder": 1e-3, "decoder": 0.9}
    nn.init.normal_(head.weight, std=0.01)
    groups = [{"params": [model[n].weight], "lr": rates[n]} for n in order]
    return model, torch.optim.SGD(groups, lr=1e-3)


def forward(model, batch):
    h = model["encoder"](batch)
    return model["head"](h * h)


def first():
    model, optimizer = build(["encoder", "decoder"])
    model["head"].weight.requires_grad_(False)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.mse_loss(forward(model, x), y).backward()
        optimizer.step()
    torch.save({"weights": model.state_dict(), "optimizer": optimizer.state_dict()}, file)


first()
saved = torch.load(file)
model, optimizer = build(["decoder", "encoder"])
model.load_state_dict(saved["weights"])
with torch.no_grad():
    model["head"].weight.mul_(20)
try:
    optimizer.load_state_dict(saved["optimizer"])
except ValueError as error:
    print(error)
losses = []
for step in range(60):
    rows = slice(64 * (step % 4), 64 * (step % 4) + 64)
    loss = nn.functional.mse_loss(forward(model, x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"final loss {sum(losses[-8:]) / 8:.4f}")
