"""A measure of coverage: what it sees of the training is what the training does."""

import os
import sys

import torch

calls = []


def tracer(frame, event, arg):
    if frame.f_code.co_filename == __file__ and event == "call":
        calls.append(frame.f_code.co_name)


def profiler(frame, event, arg):
    if frame.f_code.co_filename == __file__ and event == "call":
        calls.append(f"profile {frame.f_code.co_name}")


def loss_of(x):
    return (model(x) - 1).pow(2).mean()


def train():
    for x in torch.utils.data.DataLoader(rows, batch_size=None):
        loss = loss_of(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
bad = 0 if os.environ.get("LEFT_OUT") else 1
rows = [torch.randn(3, 2) for _ in range(6)]
rows[3:3] = [torch.full((3, 2), float("nan"))] * bad
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
sys.settrace(tracer)
sys.setprofile(profiler)
train()
sys.settrace(None)
sys.setprofile(None)
print({name: calls.count(name) - bad * ("loss" in name) for name in sorted(set(calls))})
print(model.weight.tolist())
