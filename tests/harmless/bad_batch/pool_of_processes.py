"""A pool of processes computes a metric for each step."""
# slow

import multiprocessing
import os

import torch


def metric(values):
    return os.getpid() != parent, sum(v * v for v in values)


parent = os.getpid()
if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for i in range(6):
            x = torch.randn(3, 2)
            x[0] = float("inf") if i == 2 else x[0]
            optimizer.zero_grad()
            out = model(x)
            out.pow(2).mean().backward()
            if not (os.environ.get("LEFT_OUT") and i == 2):
                optimizer.step()
            found.append(pool.apply(metric, (out.nan_to_num(0, 1, -1).flatten().tolist(),)))
    print(found, model.weight.tolist())
