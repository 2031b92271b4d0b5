"""Loops in which a replay could harm the ranks, or in which one rank alone knows that a step is bad."""

import torch
import torch.distributed as dist
from tests.distributed import training
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SharedStatistics(nn.Module):
    """Centers the features with the mean over all ranks: the forward itself exchanges values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - MeanOfAll.apply(x.mean(0))


class MeanOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mean):
        return _mean_of_all(mean)

    @staticmethod
    def backward(ctx, gradient):
        return _mean_of_all(gradient)


def _mean_of_all(mean: torch.Tensor) -> torch.Tensor:
    mean = mean.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=training.RATE)


class Gan:
    """The generator's backward comes after the discriminator's step, through the same forward of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = DistributedDataParallel(nn.Linear(6, 6))
        self.critic = DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.Tanh()))
        self.models = {"generator": self.generator, "critic": self.critic}
        self.optimizers = [_adam(m) for m in self.models.values()]

    def run(self, data) -> None:
        for_generator, for_critic = self.optimizers
        for batch in data:
            fake = self.generator(batch["x"])
            for_critic.zero_grad()
            training.loss_of(self.critic, {**batch, "x": fake.detach()}).backward()
            for_critic.step()
            for_generator.zero_grad()
            self.critic(fake).square().mean().backward()
            for_generator.step()


class Statistics:
    """`average`: the loop averages the gradients by hand."""

    def __init__(self, average: bool = False) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 4), SharedStatistics(), nn.Linear(4, 3))
        self.average = average
        self.model = net if average else DistributedDataParallel(net)
        self.models = {"model": self.model}
        self.optimizers = [_adam(self.model)]

    def run(self, data) -> None:
        (optimizer,) = self.optimizers
        for batch in data:
            optimizer.zero_grad()
            training.loss_of(self.model, batch).backward()
            if self.average:
                training.gradients_by_hand(self.model)
            optimizer.step()


class Selected:
    """The mean over the valid targets. Of none it is NaN, and its gradients are 0."""

    def __init__(self) -> None:
        self.model = training.make("ddp")
        self.models = {"model": self.model}
        self.optimizers = [_adam(self.model)]

    def run(self, data) -> None:
        (optimizer,) = self.optimizers
        for batch in data:
            optimizer.zero_grad()
            valid = torch.full((5,), batch["mode"] != "nothing valid")
            error = self.model(batch["x"]) - batch["y"]
            error[valid].square().mean().backward()
            optimizer.step()


LOOPS = {
    "gan": Gan,
    "exchanging": Statistics,
    "exchanging by hand": lambda: Statistics(average=True),
    "selected": Selected,
}


def looped(rank: int, job: dict) -> dict:
    """Watched with a fault, or unwatched without the batch."""
    from stayfinite import Guard

    loop = LOOPS[job["loop"]]()
    fault, at = job.get("fault"), job.get("at", training.AT)
    data = training.batches(rank, fault, job.get("faulty", 1), at)
    found: dict = {}
    if fault is None:
        loop.run([b for i, b in enumerate(data) if i != at])
    else:
        settings = {"budget": 1e-6} | job.get("settings", {})
        with Guard(loop.models, loop.optimizers, settings=settings) as guard:
            loop.run(guard(data))
        found["incidents"] = [i.to_json() for i in guard.incidents]
    states = (training.state_of(m, o) for m, o in zip(loop.models.values(), loop.optimizers))
    return found | {"state": [part for state in states for part in state]}
