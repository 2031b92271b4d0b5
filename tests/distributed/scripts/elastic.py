"""A training as anybody writes it for torchrun: it saves, and goes on from what it finds."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# Over the launcher's own store gloo finds, now and then, the addresses of the attempt before.
store = f"file://{os.path.abspath(f'store{attempt}')}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
start = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt", weights_only=True)
    model.module.load_state_dict(saved["model"])
    start = saved["step"] + 1
for step in range(start, 8):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    if step == 2 and rank == 1:
        x[0, 0] = float("nan")
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, "checkpoint.pt")
    if step == 5 and rank == 1 and attempt == 0:
        os._exit(7)
os.write(1, f"rank {rank} began at {start} in attempt {attempt}\n".encode())
dist.destroy_process_group()
