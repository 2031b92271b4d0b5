"""Two players, each with a loss scale of its own: a graph of the one is not touched by what is put back of the other."""
# slow

import os

import torch

torch.manual_seed(0)
player, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (player, judge)]
scalers = [
    torch.amp.GradScaler("cpu", init_scale=s, growth_interval=n) for s, n in ((256.0, 2), (64.0, 3))
]
data = torch.randn(20, 3)
data[5] = float("nan")


def step(which, loss):
    optimizers[which].zero_grad()
    scalers[which].scale(loss).backward()
    scalers[which].step(optimizers[which])
    scalers[which].update()


for i, x in enumerate(data.split(2)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    step(1, judge(player(x).detach()).sigmoid().mean() - judge(x).sigmoid().mean())
    step(0, -judge(player(x)).sigmoid().mean())
print(
    [s.state_dict() for s in scalers], [p.tolist() for m in (player, judge) for p in m.parameters()]
)
