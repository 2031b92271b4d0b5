"""argparse with subcommands, defaults from a file and an exit by itself."""

import argparse
import json
import pathlib

import torch

pathlib.Path("defaults.json").write_text(json.dumps({"rate": 0.1, "steps": 4}))
parser = argparse.ArgumentParser(prog=None)
commands = parser.add_subparsers(dest="command")
train = commands.add_parser("train")
train.add_argument("--rate", type=float)
train.add_argument("--steps", type=int)
train.set_defaults(**json.loads(pathlib.Path("defaults.json").read_text()))
options = parser.parse_args(["train", "--steps", "6"])
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=options.rate)
for _ in range(options.steps):
    optimizer.zero_grad()
    (model(torch.randn(3, 2)) - 1).pow(2).mean().backward()
    optimizer.step()
print(options, parser.prog, model.weight.tolist(), flush=True)
parser.parse_args(["train", "--unknown"])
