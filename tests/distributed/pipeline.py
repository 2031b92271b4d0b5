"""A model cut into two stages, one on each rank."""

from pathlib import Path

import torch
from tests.distributed import training
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader

NUM_BATCHES = 8
AT = 4


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.square().sum(1, keepdim=True)
        return torch.tanh(self.linear(x)) + torch.sqrt(length - 1e-3)  # fault: first


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out - y).square().mean() + torch.log(y.square().sum(1)).mean()  # fault: last


def batches(fault: str | None, without: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    found = []
    for i in range(NUM_BATCHES):
        x, y = torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)
        if i == AT and fault == "first":
            x[2] = 0.0
        if i == AT and fault == "last":
            y[1] = 0.0
        found.append((x, y))
    return [b for i, b in enumerate(found) if i not in without]


def staged(rank: int, job: dict) -> dict:
    """Under `run`, or plain."""
    from stayfinite.config import Settings
    from stayfinite.investigate.entry import investigate
    from stayfinite.recover.policy import Policy
    from stayfinite.runtime.script.run_script import ScriptRun

    found: dict = {}

    def train() -> None:
        torch.manual_seed(rank)
        module = (First, Last)[rank]()
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[job["schedule"]]
        schedule = kind(stage, n_microbatches=2, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(module.parameters(), lr=training.RATE)
        data = batches(job.get("fault"), tuple(job.get("without", ())))
        for x, y in DataLoader(data, batch_size=None) if job.get("has_loader") else data:
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                losses: list[torch.Tensor] = []
                schedule.step(target=y, losses=losses)
            optimizer.step()
        found["state"] = training.state_of(module, optimizer)

    if not job.get("is_watched"):
        train()
        return found
    folder = Path(job["folder"]) / "run"
    run = ScriptRun(
        Settings(budget=1e-6),
        Policy.parse(job.get("policy", "skip")),
        folder,
        investigate,
        index=rank,
    )
    run.run_call(train)
    return {"incidents": [i.to_json() for i in run.engine.incidents], **found}
