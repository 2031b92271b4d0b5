"""The best weights are copied; three epochs without a better one end the training."""

import copy
import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
train, held_out = torch.randn(16, 3), torch.randn(8, 3)
train[5] = float("nan")
best, best_loss, waited = None, float("inf"), 0
epoch = 0
while epoch < 30:
    epoch += 1
    for i, x in enumerate(torch.utils.data.DataLoader(train, batch_size=4)):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        if not (os.environ.get("LEFT_OUT") and i == 1):
            optimizer.step()
    with torch.no_grad():
        loss = (model(held_out) - held_out.sum(1, keepdim=True)).pow(2).mean().item()
    if loss < best_loss:
        best, best_loss, waited = copy.deepcopy((model, optimizer)), loss, 0
    elif (waited := waited + 1) == 3:
        break
print(epoch, best_loss, best[0].weight.tolist(), len(best[1].state))
torch.save(best[0].state_dict(), "best.pt")
