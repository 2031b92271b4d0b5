from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Pair:
    source: torch.Tensor
    target: torch.Tensor
    names: list


def collate(items):
    x = torch.stack([i[0] for i in items])
    t = torch.stack([i[1] for i in items])
    return {"pair": Pair(x, t, [str(i) for i in range(len(items))]), "extra": [None, (x * 2,)]}


def divergence(guess, target):
    return (target * (target.log() - guess)).sum(-1).mean()  # HERE


torch.manual_seed(0)
data = [(torch.randn(3), torch.rand(4).softmax(0)) for _ in range(25)]
data[11] = (torch.randn(3), torch.tensor([0.5, 0.5, 0.0, 0.0]))
model = nn.Linear(3, 4)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=5, collate_fn=collate):
    optimizer.zero_grad()
    guess = model(batch["pair"].source + batch["extra"][1][0] * 0).log_softmax(-1)
    loss = divergence(guess, batch["pair"].target)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.bias.sum().item():.6f}")
