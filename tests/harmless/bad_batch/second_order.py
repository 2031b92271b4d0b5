"""LBFGS evaluates its closure as often as it likes."""

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
data = torch.randn(20, 3)
data[13] = float("inf")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 3:
        continue

    def closure(x=x):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean() + 0.1 * model.weight.abs().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
print(model.weight.tolist(), optimizer.state[model.weight]["func_evals"])
