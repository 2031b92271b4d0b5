"""A progress bar with the loss in it, round the loader, written into a file."""
# slow

import os

import torch
from tqdm import tqdm

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(16, 2)
data[6] = float("nan")
loader = torch.utils.data.DataLoader(data, batch_size=2)
with open("bar.txt", "w") as file:
    form = "{n}/{total} {postfix}"
    bar = tqdm(loader, file=file, bar_format=form, mininterval=0, miniters=1)
    for i, x in enumerate(bar):
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        if not (os.environ.get("LEFT_OUT") and i == 3):
            optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.6f}", refresh=False)
print(bar.n, model.weight.tolist())
