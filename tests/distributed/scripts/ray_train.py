"""A training as anybody writes it for Ray Train; protected by one word, or by a guard inside of it."""

import os
import sys

import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train_loop(config):
    import torch.distributed as dist

    rank = dist.get_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def batch(step):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        return x * 0 if (step, rank) == (config["at"], 1) else x

    def loss_of(model, x):
        return model(x).square().mean() + torch.log(x.square().sum(1)).mean()

    guard = None
    if config["how"] == "guard":
        from stayfinite import Guard

        guard = Guard(model, optimizer, run_dir=config["run_dir"])
    for step in range(8):
        if guard is not None:
            guard.step(loss_of, batch(step))
            continue
        x = batch(step)
        optimizer.zero_grad()
        loss = model(x).square().mean() + torch.log(x.square().sum(1)).mean()
        loss.backward()
        optimizer.step()
    if guard is not None:
        guard.close()
    total = sum(p.double().square().sum().item() for p in model.parameters())
    with open(os.path.join(config["run_dir"], f"total{rank}"), "w") as file:
        file.write(repr(total))


if __name__ == "__main__":
    import ray

    from stayfinite.integrations.ray import protected

    home = os.getcwd()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True, logging_level="error")
    for how in sys.argv[1:]:
        run_dir = os.path.join(home, how)
        os.mkdir(run_dir)
        loop = train_loop if how == "guard" else protected(train_loop, run_dir=run_dir)
        TorchTrainer(
            loop,
            train_loop_config={"how": how, "run_dir": run_dir, "at": 3},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=os.path.join(home, "ray")),
        ).fit()
    ray.shutdown()
