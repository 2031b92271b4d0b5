"""A thread writes what the loop hands it through a queue."""

import os
import queue
import threading

import torch

torch.manual_seed(0)
todo = queue.Queue(maxsize=2)


def write():
    with open("metrics.txt", "w") as file:
        while (item := todo.get()) is not None:
            print(*item, file=file)
            todo.task_done()


writer = threading.Thread(target=write)
writer.start()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(16, 2)
data[8] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    optimizer.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    todo.put((i, loss.item()))
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
    todo.put((i, "done"))
todo.put(None)
writer.join()
with open("metrics.txt") as file:
    num_lines = len(file.readlines())
print(num_lines, model.weight.tolist(), threading.active_count())
