"""A step under locks that the loop holds: nobody may wait for them again, least of all ourselves."""

import os
import threading

import torch


class Counted(threading.Semaphore):
    pass


class Owner:
    """As libraries have it: entering only passes on to a lock."""

    def __init__(self):
        self.lock, self.num_entered = threading.Lock(), 0

    def __enter__(self):
        self.lock.acquire()
        self.num_entered += 1

    def __exit__(self, *error):
        self.lock.release()


torch.manual_seed(0)
lock, again, own = threading.Lock(), threading.RLock(), Owner()
room, news = Counted(1), threading.Condition(threading.Lock())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)


def train(x):
    with lock, again, torch.enable_grad():
        optimizer.zero_grad()
        with room, news, own:
            loss = model(x).pow(2).mean()
            if not (os.environ.get("LEFT_OUT") and loss.isnan()):
                loss.backward()
                optimizer.step()


data = torch.randn(20, 2)
data[9] = float("nan")
for x in torch.utils.data.DataLoader(data, batch_size=4):
    train(x)
print(lock.locked(), room._value, own.num_entered, own.lock.locked())
torch.save(model.state_dict(), "end.pt")
