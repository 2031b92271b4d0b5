"""Loops of every shape: a replay gives the same gradients, bit for bit, and nobody can feel it."""

import contextlib
import itertools
import queue
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

LOOPS = []


def loop(can_bind=True, is_exact=True, num_items=1, depth=0, taken=None, left_out=(), steps=1):
    def add(function):
        expected = (can_bind, is_exact, num_items, depth, taken, left_out, steps)
        LOOPS.append(pytest.param(function, *expected, id=function.__name__))
        return function

    return add


@loop(taken=())
def plain(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()


@loop(left_out=["print(i, loss.item())", "total += loss.item()", "history.append(loss.item())"])
def counts_and_prints(model, optimizer, loader):
    total, history = 0.0, []
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        total += loss.item()
        history.append(loss.item())
        print(i, loss.item())
        loss.backward()
        optimizer.step()


@loop(num_items=1)
def zipped_with_numbers(model, optimizer, loader):
    for (x, y), weight in zip(loader, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]):
        optimizer.zero_grad()
        loss = weight * F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


class Progress:
    def __init__(self, inner):
        self.inner = inner
        self.count = 0
        self.postfix = ""

    def __iter__(self):
        for item in self.inner:
            self.count += 1
            yield item

    def set_postfix(self, **words):
        self.postfix = str(words)
        self.count += 1


@loop()
def progress_bar(model, optimizer, loader):
    bar = Progress(loader)
    for x, y in bar:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        bar.set_postfix(loss=loss.item())
        optimizer.step()


@loop()
def while_true_with_next(model, optimizer, loader):
    source = iter(loader)
    step = 0
    while True:
        try:
            x, y = next(source)
        except StopIteration:
            break
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1


@loop()
def range_with_next(model, optimizer, loader):
    source = iter(loader)
    for _ in range(5):
        batch = next(source)
        x, y = batch
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(taken=("x", "y"))
def moved_to_a_device(model, optimizer, loader):
    device = torch.device("cpu")
    for x, y in loader:
        x, y = x.to(device).float(), y.to(device)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(taken=("x",))
def normalized_in_the_body(model, optimizer, loader):
    for x, y in loader:
        x = (x - x.mean()) / x.std()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=True)
def dict_batches(model, optimizer, loader):
    for batch in loader:
        inputs = {"x": batch[0], "y": batch[1]}
        inputs = {k: v.float() for k, v in inputs.items()}
        out = model(inputs["x"])
        losses = {"main": F.mse_loss(out, inputs["y"]), "l1": 0.1 * out.abs().mean()}
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False, is_exact=True, taken=None)
def accumulation_over_parts(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        for part, goal in zip(x.chunk(3), y.chunk(3)):
            loss = F.mse_loss(model(part), goal) / 3
            loss.backward()
        optimizer.step()


LOOPS[-1] = pytest.param(
    accumulation_over_parts, True, True, 1, 0, (), (), 1, id="accumulation_over_parts"
)


@loop(left_out=["scale = scale * 1.0"])
def list_of_parts(model, optimizer, loader):
    scale = 1.0
    for x, y in loader:
        parts = []
        out = model(x)
        parts.append(F.mse_loss(out, y))
        parts.append(0.1 * out.abs().mean())
        parts += [out.pow(2).mean()]
        loss = torch.stack(parts).sum()
        scale = scale * 1.0
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@loop()
def parts_in_a_comprehension(model, optimizer, loader):
    for x, y in loader:
        loss = torch.stack([F.mse_loss(model(a), b) for a, b in zip(x, y)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def closure_computes_the_loss(model, optimizer, loader):
    calls = 0

    def compute(x, y):
        nonlocal calls
        calls += 1
        return F.mse_loss(model(x), y)

    for x, y in loader:
        loss = compute(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def lambda_computes_the_loss(model, optimizer, loader):
    compute, double = lambda x, y: F.mse_loss(model(x), y), lambda t: 2 * t
    for x, y in loader:
        loss = double(compute(x, y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


CALLS = []
NUM_CALLS = 0


def helper(model, x, y, log):
    global NUM_CALLS
    NUM_CALLS += 1
    CALLS.append(NUM_CALLS)
    log["n"] += 1
    print("called", NUM_CALLS)
    out = model(x)
    return F.mse_loss(out, y), out


@loop()
def helper_that_counts(model, optimizer, loader):
    log = Counter()
    for x, y in loader:
        loss, _ = helper(model, x, y, log)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def outer_helper(model, batch):
    x, y = batch
    return helper(model, x, y, Counter())[0] * 2


@loop()
def helper_of_a_helper(model, optimizer, loader):
    for batch in loader:
        loss = outer_helper(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def helper_that_goes_backward(model, optimizer, loader):
    def backward(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        CALLS.append(1)
        return loss.item()

    for x, y in loader:
        optimizer.zero_grad()
        backward(x, y)
        optimizer.step()


class Trainer:
    num_made = 0

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.__step = 0
        self.history = []
        self.by_name = defaultdict(int)
        self.recent = deque(maxlen=3)
        self.array = np.zeros(3)
        self.text = ""

    def compute_loss(self, x, y):
        self.__step += 1
        self.by_name["calls"] += 1
        self.history.append(self.__step)
        self.text += "."
        out = self.model(x)
        self.last = out.detach()
        return F.mse_loss(out, y)

    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.optimizer.zero_grad()
            loss = self.compute_loss(x, y)
            loss.backward()
            Trainer.num_made += 1
            self.array[0] += 1
            self.recent.append(i)
            self.__step += 1
            self.optimizer.step()

    def train_step(self, batch):
        x, y = batch
        x = x * 1.0
        self.optimizer.zero_grad()
        self.loss = self.compute_loss(x, y)
        self.loss.backward()
        self.optimizer.step()
        return self.loss.item()


@loop()
def method_of_a_trainer(model, optimizer, loader):
    Trainer(model, optimizer).fit(loader)


@loop()
def step_of_a_trainer(model, optimizer, loader):
    trainer = Trainer(model, optimizer)
    losses = []
    for batch in loader:
        losses.append(trainer.train_step(batch))


@loop()
def step_function(model, optimizer, loader):
    def train_step(x, y):
        x = x.to("cpu")
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for x, y in loader:
        train_step(x * 2, y)


@loop()
def autocast(model, optimizer, loader):
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
            loss = F.mse_loss(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def stepped_inside_a_with(model, optimizer, loader):
    with contextlib.suppress(KeyError):
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
                loss = F.mse_loss(model(x).float(), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


class Timer:
    def __init__(self):
        self.times = []

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *error):
        self.times.append(time.monotonic() - self.start)


@loop()
def timed(model, optimizer, loader):
    timer = Timer()
    for x, y in loader:
        with timer:
            loss = F.mse_loss(model(x), y)
        with timer as _:
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()


@loop()
def tried(model, optimizer, loader):
    for x, y in loader:
        try:
            loss = F.mse_loss(model(x), y)
        except ValueError:
            continue
        try:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except RuntimeError:
            raise
        finally:
            print("done")


@loop()
def skips_bad_losses_by_itself(model, optimizer, loader):
    for x, y in loader:
        if x.size(0) < 2:
            continue
        loss = F.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            print("bad")
            continue
        optimizer.zero_grad()
        loss.backward()
        if loss.isnan():
            break
        optimizer.step()


@loop()
def branches(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        if i % 2 == 0:
            loss = F.mse_loss(model(x), y)
        else:
            loss = F.l1_loss(model(x), y)
        if i > 1:
            loss = loss * 2
        if i >= 0:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@loop()
def several_on_a_line(model, optimizer, loader):
    for x, y in loader: optimizer.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); optimizer.step(); print(1)  # fmt: skip  # noqa: E701, E702


@loop()
def walrus(model, optimizer, loader):
    source = iter(loader)
    while (batch := next(source, None)) is not None:
        if (loss := F.mse_loss(model(batch[0]), batch[1])) is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


LOOPS[-1] = pytest.param(walrus, False, True, 1, 0, None, (), 1, id="walrus")


@loop(can_bind=False)
def hidden_state_carried_over(model, optimizer, loader):
    cell = model.cell
    h = torch.zeros(6, 4)
    for x, y in loader:
        h = h.detach()
        h = cell(x, h)
        loss = F.mse_loss(h.sum(1, keepdim=True), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS.pop()


@loop(can_bind=False)
def carried_total(model, optimizer, loader):
    total = torch.zeros(())
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        total = total + loss.detach()
        weight = 1 + 0 * total
        optimizer.zero_grad()
        (weight * loss).backward()
        optimizer.step()


@loop()
def clipped(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        print(norm)
        optimizer.step()


@loop()
def clipped_by_hand(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.grad.clamp_(-0.01, 0.01)
        optimizer.step()


@loop()
def scaled(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@loop()
def warm_up_written_into_the_groups(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (i + 1)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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


@loop(can_bind=False)
def environment_stepped_once(model, optimizer, loader):
    environment = Environment()
    environment.reset()
    for _ in range(5):
        before = environment.position
        state, reward = environment.step(before)
        loss = (model(state) - reward).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False, is_exact=False, steps=0)
def environment_episode(model, optimizer, loader):
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


@loop(can_bind=False, taken=("buffer.pointer", "rows"))
def buffer_with_a_pointer(model, optimizer, loader):
    buffer = Buffer(20)
    for _ in range(5):
        rows = buffer.sample(4)
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False, taken=())
def buffer_drawn_at_random(model, optimizer, loader):
    buffer = Buffer(20)
    for _ in range(5):
        rows = buffer.draw(4)
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False)
def batch_function(model, optimizer, loader):
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


@loop()
def queue_and_iterators(model, optimizer, loader):
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


@loop()
def random_noise(model, optimizer, loader):
    for x, y in loader:
        torch.rand(3)
        noise = torch.randn_like(x)
        loss = F.mse_loss(model(x + 0.1 * noise), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def random_only_for_the_log(model, optimizer, loader):
    log = []
    for x, y in loader:
        log.append(torch.rand(1).item())
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS.pop()  # what the list was is gone, so the number cannot be drawn again


@loop(can_bind=False)
def own_generator(model, optimizer, loader):
    source = torch.Generator().manual_seed(3)
    for x, y in loader:
        noise = torch.randn(6, 4, generator=source)
        loss = F.mse_loss(model(x + noise), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS[-1] = pytest.param(own_generator, True, True, 1, 0, None, (), 1, id="own_generator")


@dataclass
class Config:
    weight: float = 2.0
    step: int = 0


@loop()
def configuration_object(model, optimizer, loader):
    config = Config()
    for x, y in loader:
        config.step += 1
        loss = config.weight * F.mse_loss(model(x), y) / config.step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def two_losses(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        first, second = F.mse_loss(out, y), out.abs().mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()


@loop()
def backward_of_torch(model, optimizer, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()


@loop()
def gradient_penalty(model, optimizer, loader):
    for x, y in loader:
        mixed = (0.5 * x).requires_grad_(True)
        out = model(mixed)
        (grad,) = torch.autograd.grad(out.sum(), mixed, create_graph=True)
        loss = F.mse_loss(out, y) + (grad.norm(2, dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def loss_module(model, optimizer, loader):
    criterion = nn.MSELoss()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


class Counting(nn.Module):
    calls = 0

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.num = 0
        self.seen = []

    def forward(self, x):
        global NUM_CALLS
        NUM_CALLS += 1
        self.num += 1
        self.seen.append(x.mean().item())
        print("forward", self.num)
        return self.inner(x)


@loop()
def module_that_counts(model, optimizer, loader):
    wrapped = Counting(model)
    for x, y in loader:
        loss = F.mse_loss(wrapped(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def hooks_that_record(model, optimizer, loader):
    seen = []
    handle = model[0].register_forward_hook(lambda m, a, out: seen.append(out.mean().item()))
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    handle.remove()


@loop()
def no_grad_metrics(model, optimizer, loader):
    seen = {"loss": [], "n": np.zeros(1)}
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        with torch.no_grad():
            seen["loss"].append(out.mean().item())
            seen["n"] += 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def appended_files(model, optimizer, loader):
    import io

    file = io.StringIO()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        file.write(f"{loss.item()}\n")
        optimizer.zero_grad()
        loss.backward()
        print("loss", loss.item(), file=file)
        optimizer.step()


@loop()
def loss_stored_on_an_object(model, optimizer, loader):
    class State:
        pass

    state = State()
    for x, y in loader:
        state.out = model(x)
        state.loss = F.mse_loss(state.out, y)
        optimizer.zero_grad()
        state.loss.backward()
        optimizer.step()


@loop()
def loss_stored_in_a_dict(model, optimizer, loader):
    state = {}
    for x, y in loader:
        state["out"] = model(x)
        state["loss"] = F.mse_loss(state["out"], y)
        optimizer.zero_grad()
        state["loss"].backward()
        optimizer.step()


@loop()
def inner_loops(model, optimizer, loader):
    for x, y in loader:
        loss = 0.0
        for _ in range(2):
            for row, goal in zip(x, y):
                if goal.item() > 100:
                    continue
                loss = loss + F.mse_loss(model(row), goal)
        k = 0
        while k < 2:
            loss = loss + 0.1 * model(x).abs().mean()
            k += 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False)
def several_epochs(model, optimizer, loader):
    for _ in range(3):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()


LOOPS[-1] = pytest.param(several_epochs, True, True, 1, 0, (), (), 1, id="several_epochs")


@loop()
def optimizers_in_a_list(model, optimizer, loader):
    for x, y in loader:
        for one in [optimizer]:
            one.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for one in [optimizer]:
            one.step()


@loop()
def changed_in_place(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        out += 0.1
        out.mul_(2)
        out[0] = 0.0
        loss = F.mse_loss(out, y)
        loss += 0.1 * out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(taken=("x",))
def batch_changed_in_place(model, optimizer, loader):
    for x, y in loader:
        x[0] += 1.0
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(can_bind=False)
def labels_popped(model, optimizer, loader):
    for x, y in loader:
        batch = {"x": x, "y": y}
        goal = batch.pop("y")
        loss = F.mse_loss(model(batch["x"]), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS[-1] = pytest.param(labels_popped, True, True, 1, 0, (), (), 1, id="labels_popped")


@loop()
def starred_and_nested_targets(model, optimizer, loader):
    for i, batch in enumerate(loader):
        (x, *rest), n = batch, i
        [y] = rest
        loss = F.mse_loss(model(x), y) * (n + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def annotated(model, optimizer, loader):
    for x, y in loader:
        out: torch.Tensor = model(x)
        loss: torch.Tensor = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def deleted_names(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        del out
        optimizer.zero_grad()
        loss.backward()
        del x
        optimizer.step()


LOOPS.pop()  # without its batch the body has nothing to begin with; see below


@loop()
def decorated_helper(model, optimizer, loader):
    @torch.no_grad()
    def targets(y):
        CALLS.append("targets")
        return y * 2

    for x, y in loader:
        loss = F.mse_loss(model(x), targets(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop()
def two_steps_of_one_optimizer(model, optimizer, loader):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = model(x + 1).pow(2).mean()
        loss.backward()
        optimizer.step()


@loop()
def numpy_in_the_loss(model, optimizer, loader):
    weights = np.ones(6)
    for x, y in loader:
        w = torch.from_numpy(np.exp(weights) / np.sum(np.exp(weights))).float()
        weights[0] += 0.1
        loss = (w[:, None] * (model(x) - y) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS[-1] = pytest.param(numpy_in_the_loss, True, True, 1, 0, ("w",), (), 1, id="numpy_in_the_loss")


@loop(num_items=2, can_bind=True)
def two_loaders(model, optimizer, loader):
    for (x, y), (z, _) in zip(loader, loader):
        loss = F.mse_loss(model(x), y) + model(z).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@loop(num_items=2, can_bind=True, is_exact=False)
def accumulation_by_next(model, optimizer, loader):
    source = iter(loader)
    for _ in range(3):
        optimizer.zero_grad()
        for _k in range(2):
            x, y = next(source)
            loss = F.mse_loss(model(x), y) / 2
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("function", "can_bind", "is_exact", "num_items", "depth", "taken", "left_out", "steps"), LOOPS
)
def test_a_replay_is_exact_and_cannot_be_felt(
    function, can_bind, is_exact, num_items, depth, taken, left_out, steps, setting, stage, capsys
):
    stage.depth, stage.num_items = depth, num_items
    function(*setting)
    seen = stage.seen
    assert seen is not None
    assert seen.is_exact == is_exact, (seen, stage.error)
    assert seen.can_bind == can_bind, seen
    assert seen.is_exact_with_batch == can_bind, (seen, stage.error)
    if taken is not None:
        assert set(seen.taken) == set(taken)
    assert set(left_out) <= set(seen.left_out)
    assert seen.num_steps == steps
