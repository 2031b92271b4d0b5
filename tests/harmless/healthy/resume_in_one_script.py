"""Trains, saves, makes everything anew, restores, goes on: as if it had never stopped."""

import random

import torch


def make():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=12)


def steps(model, optimizer, schedule, n):
    for _ in range(n):
        optimizer.zero_grad()
        (model(torch.randn(3, 2)) - random.random()).pow(2).mean().backward()
        optimizer.step()
        schedule.step()


torch.manual_seed(0)
random.seed(0)
parts = make()
steps(*parts, 5)
torch.save([p.state_dict() for p in parts] + [torch.get_rng_state()], "half.pt")
python_state = random.getstate()
steps(*parts, 5)
*states, rng = torch.load("half.pt", weights_only=True)
again = make()
for part, state in zip(again, states):
    part.load_state_dict(state)
torch.set_rng_state(rng)
random.setstate(python_state)
steps(*again, 5)
one, two = ([p.tolist() for p in each[0].parameters()] for each in (parts, again))
print(one == two, one, again[2].get_last_lr())
