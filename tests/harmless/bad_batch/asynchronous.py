"""The training is a coroutine that waits for its batches."""
# slow

import asyncio
import os

import torch


async def produce(batches, data):
    for x in data.split(2):
        await batches.put(x)
        await asyncio.sleep(0)
    await batches.put(None)


async def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(14, 2)
    data[9] = float("nan")
    batches = asyncio.Queue(maxsize=1)
    producer = asyncio.create_task(produce(batches, data))
    num_seen = 0
    while (x := await batches.get()) is not None:
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        if not (os.environ.get("LEFT_OUT") and num_seen == 4):
            optimizer.step()
        num_seen += 1
    await producer
    return num_seen, model.weight.tolist()


print(asyncio.run(train()))
