import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="none")
parser.add_argument("--run-dir", default="none")
parser.add_argument("-m", dest="mode", default="none")
parser.add_argument("--budget", type=float, default=0.0)
parser.add_argument("--help-me", action="store_true")
parser.add_argument("rest", nargs="*")
args = parser.parse_args()
print(args.policy, args.run_dir, args.mode, args.budget, args.help_me, args.rest)
torch.manual_seed(0)
x = torch.randn(12, 2)
x[5] = float("nan")
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (xb,) in DataLoader(TensorDataset(x), batch_size=4):
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean()  # HERE
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.weight.sum().item():.6f}")
