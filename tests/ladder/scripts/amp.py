# ruff: noqa: SIM115
"""Goes bad only in half precision: a product beyond 65504. The config decides on it."""

import argparse
import json
import os
from pathlib import Path

import safetensors.torch
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=str(Path(__file__).with_name("amp.yaml")))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=8, choices=[4, 8])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", default="out")
    args = parser.parse_args()
    with open(args.config) as f:
        cfg = yaml.safe_load(f)
    torch.manual_seed(cfg["seed"])
    os.makedirs(args.out, exist_ok=True)
    log = open(os.path.join(args.out, "log.txt"), "a")

    x = torch.randn(64, 4)
    x[37] *= 3000.0
    data = TensorDataset(x, torch.randn(64, 1))
    loader = DataLoader(data, batch_size=4, shuffle=False)
    model = nn.Sequential(nn.Linear(4, args.width), nn.ReLU(), nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(cfg["optimizer"]["lr"]))
    for epoch in range(args.epochs):
        for i, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=cfg["use_amp"]):
                h = model[0](a)
                energy = (h @ h.T).sum(1, keepdim=True)
                out = model[2](torch.relu(h)) + cfg["loss"]["mix"] * energy
                loss = nn.functional.smooth_l1_loss(out * 1e-3, b)
            loss.backward()
            optimizer.step()
            log.write(f"{epoch} {i} {loss.item()}\n")
            print(epoch, i, loss.item())
            if i % 4 == 0:
                torch.save(model.state_dict(), os.path.join(args.out, "last.pt"))
                safetensors.torch.save_model(model, os.path.join(args.out, "last.safetensors"))
                Path(args.out, "state.json").write_text(json.dumps({"epoch": epoch, "i": i}))
                assert (
                    torch.load(os.path.join(args.out, "last.pt")).keys()
                    == model.state_dict().keys()
                )
                assert json.loads(Path(args.out, "state.json").read_text())["i"] == i
    print("done")


main()
