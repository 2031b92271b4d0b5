"""What reaches outside is not called again; its result is taken."""

import io
import itertools
import logging
import os
import queue
import threading
import time
from collections import deque

import torch
import torch.nn.functional as F


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


class Environment:
    all_steps = 0

    def __init__(self):
        self.position = torch.zeros(4)
        self.num = 0

    def reset(self):
        self.num += 1
        self.position = torch.full((4,), 0.1 * self.num)
        return self.position.clone()

    def step(self, action):
        Environment.all_steps += 1
        self.position = self.position + 0.1 * action.detach()
        return self.position.clone(), float(-self.position.sum())


class Buffer:
    def __init__(self, size):
        self.rows = [torch.full((4,), 0.1 * i) for i in range(size)]
        self.pointer = 0

    def sample(self, n):
        rows = [self.rows[(self.pointer + i) % len(self.rows)] for i in range(n)]
        self.pointer = (self.pointer + n) % len(self.rows)
        return torch.stack(rows)

    def draw(self, n):
        index = torch.randint(0, len(self.rows), (n,))
        return torch.stack([self.rows[i] for i in index.tolist()])

    def add(self, row):
        self.rows.append(row)


def loop_warm_up_written_into_the_groups(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (i + 1)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_environment_stepped_once(model, optimizer, loader, *, can_bind=False):
    environment = Environment()
    environment.reset()
    for _ in range(5):
        before = environment.position
        state, reward = environment.step(before)
        loss = (model(state) - reward).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_environment_episode(model, optimizer, loader, *, can_bind=False, is_exact=False, steps=0):
    environment = Environment()
    for _ in range(5):
        state = environment.reset()
        losses = []
        for _k in range(3):
            action = model(state)
            state, reward = environment.step(action)
            losses.append((action - reward).pow(2).sum())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_buffer_with_a_pointer(
    model, optimizer, loader, *, can_bind=False, taken=("buffer.pointer", "rows")
):
    buffer = Buffer(20)
    for _ in range(5):
        rows = buffer.sample(4)
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_buffer_drawn_at_random(model, optimizer, loader, *, can_bind=False, taken=()):
    buffer = Buffer(20)
    for _ in range(5):
        rows = buffer.draw(4)
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_batch_function(model, optimizer, loader, *, can_bind=False):
    data = torch.arange(40.0).reshape(10, 4)

    def get_batch():
        index = torch.randint(0, 10, (3,))
        return data[index], data[index].sum(1, keepdim=True)

    for _ in range(5):
        x, y = get_batch()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_queue_and_iterators(model, optimizer, loader):
    jobs = queue.Queue()
    for n in range(20):
        jobs.put(n)
    count, names = itertools.count(), iter("abcdefghij")
    numbers = (n for n in range(100))
    for x, y in loader:
        weight = 1.0 + jobs.get() + next(count) + next(numbers)
        names_seen = next(names)
        print(names_seen)
        loss = weight * F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_own_generator(model, optimizer, loader):
    source = torch.Generator().manual_seed(3)
    for x, y in loader:
        noise = torch.randn(6, 4, generator=source)
        loss = F.mse_loss(model(x + noise), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_appended_files(model, optimizer, loader):
    file = io.StringIO()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        file.write(f"{loss.item()}\n")
        optimizer.zero_grad()
        loss.backward()
        print("loss", loss.item(), file=file)
        optimizer.step()


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.num_read = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.num_read += 1
        return torch.full((4,), 0.1 * index)


def loop_data_set_that_counts(model, optimizer, loader, *, can_bind=False, taken=("rows",)):
    data = Rows()
    for i in range(5):
        rows = torch.stack([data[i], data[i + 1]])
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


READS = []


class Watched:
    def __init__(self):
        self.num = 0

    @property
    def weight(self):
        READS.append(1)
        return 2.0

    @property
    def plain(self):
        return 3.0


def loop_property_that_records(model, optimizer, loader, *, taken=("weight",)):
    watched = Watched()
    for x, y in loader:
        weight = watched.weight
        loss = weight * watched.plain * F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


SEEN = []


class Static:
    @staticmethod
    def counted(out, y):
        SEEN.append(1)
        return F.mse_loss(out, y)

    @staticmethod
    def clean(out, y):
        return F.mse_loss(out, y)

    @classmethod
    def of_class(cls, out, y):
        return cls.clean(out, y)


def loop_static_methods(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        loss = Static.clean(out, y) + Static.of_class(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_static_method_that_records(
    model, optimizer, loader, *, is_exact=False, can_bind=False, steps=0
):
    for x, y in loader:
        out = model(x)
        loss = Static.counted(out, y) + out.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Base:
    def __init__(self):
        self.num = 0

    def compute(self, model, x, y):
        self.num += 1
        return F.mse_loss(model(x), y)


class Derived(Base):
    def compute(self, model, x, y):
        return 2 * super().compute(model, x, y)


def loop_method_of_the_base_class(model, optimizer, loader):
    derived = Derived()
    for x, y in loader:
        loss = derived.compute(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Stream:
    def __init__(self):
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.position += 1
        return torch.full((4,), 0.01 * self.position)

    def read(self):
        return next(self)


def draw(stream):
    return [stream.read() for _ in range(2)]


def loop_stream_of_the_users(model, optimizer, loader, *, can_bind=False):
    stream = Stream()
    for _ in range(5):
        rows = torch.stack(draw(stream))
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def step(self, action):
        return self.inner.step(action)


def loop_wrapped_environment(model, optimizer, loader, *, can_bind=False):
    environment = Wrapper(Wrapper(Environment()))
    state = torch.zeros(4)
    for _ in range(5):
        state, reward = environment.step(state)
        loss = (model(state) - reward).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_environment_variables_and_clock(model, optimizer, loader, *, taken=("start", "weight")):
    for x, y in loader:
        start = time.time()
        weight = float(os.environ.setdefault("BODY_TEST_WEIGHT", "2"))
        loss = weight * F.mse_loss(model(x), y) + 0 * start
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_logger_and_lock(model, optimizer, loader):
    logger, lock = logging.getLogger("body"), threading.Lock()
    total = 0
    for x, y in loader:
        with lock:
            loss = F.mse_loss(model(x), y)
            total += 1
        logger.debug("loss %s", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Pushed:
    def __init__(self):
        self.items = deque(maxlen=8)
        self.states = torch.zeros(8, 4)
        self.sum = torch.zeros(4)
        self.position = 0

    def push(self, state):
        self.items.append(state)
        self.states[self.position % 8] = state
        self.position += 1

    def sample(self, n):
        index = torch.randint(0, len(self.items), (n,))
        return torch.stack([self.items[i] for i in index.tolist()])

    def weighted(self, out):
        self.sum += 1
        self.sum.mul_(2)
        return 2 * out


def loop_buffer_that_is_filled(model, optimizer, loader, *, can_bind=False):
    buffer = Pushed()
    for x, _ in loader:
        buffer.push(x[0])
        rows = buffer.sample(4)
        loss = buffer.weighted(model(rows)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_parts_from_an_environment_are_taken_with_their_graph(setting, stage):
    loop_environment_episode(*setting)
    assert stage.seen.taken == ("losses",) and "second time" in str(stage.error)
