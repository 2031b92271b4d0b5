"""A training as anybody writes it for Ray Train; protected by one word."""

import os
import sys

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from stayfinite.integrations.ray import protected


def train_loop(config):
    import torch.distributed as dist

    rank = dist.get_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        if (step, rank) == (3, 1):
            x = x * 0
        optimizer.zero_grad()
        loss = model(x).square().mean() + torch.log(x.square().sum(1)).mean()
        loss.backward()
        optimizer.step()
    total = sum(p.double().square().sum().item() for p in model.parameters())
    with open(os.path.join(config["home"], f"total{rank}"), "w") as file:
        file.write(repr(total))


if __name__ == "__main__":
    home = sys.argv[1]
    ray.init(num_cpus=3, include_dashboard=False, logging_level="error")
    TorchTrainer(
        protected(train_loop, run_dir=os.path.join(home, "run")),
        train_loop_config={"home": home},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=os.path.join(home, "ray")),
    ).fit()
    ray.shutdown()
