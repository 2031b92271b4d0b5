"""A few labeled batches, again and again, beside many without a label."""
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(12, 2)
x[5] = -0.1
labeled = DataLoader(TensorDataset(x[:8]), batch_size=4)
free = DataLoader(TensorDataset(torch.rand(24, 2)), batch_size=4)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, ((xb,), (ub,)) in enumerate(zip(itertools.cycle(labeled), free)):
    target = torch.log(xb.sum(1) + 0.3 * (i < 3))  # HERE
    loss = (model(xb).squeeze(1) - target).pow(2).mean() + model(ub).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.weight.sum().item():.6f}")
