"""A line of JSON for each step by way of pathlib, and a table with the csv module."""
# slow

import csv
import json
import os
import pathlib

import torch

torch.manual_seed(0)
out = pathlib.Path("out") / "run"
out.mkdir(parents=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with (out / "table.csv").open("w", newline="") as file:
    table = csv.DictWriter(file, ["step", "loss"])
    table.writeheader()
    for i in range(7):
        x = torch.randn(3, 2) * (float("nan") if i == 3 else 1)
        loss = (model(x) - 1).pow(2).mean()
        with (out / "log.jsonl").open("a") as log:
            log.write(json.dumps({"step": i, "loss": loss.item()}) + "\n")
        optimizer.zero_grad()
        loss.backward()
        if not (os.environ.get("LEFT_OUT") and i == 3):
            optimizer.step()
        table.writerow({"step": i, "loss": loss.item()})
        (out / f"{i}.txt").write_text(str(loss.item()))
print(sorted(p.name for p in out.iterdir()), model.weight.tolist())
