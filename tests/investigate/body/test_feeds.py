"""Another batch can be put where a loop takes its own."""

import torch.nn.functional as F


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


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


def loop_zipped_with_numbers(model, optimizer, loader, *, num_items=1):
    for (x, y), weight in zip(loader, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]):
        optimizer.zero_grad()
        loss = weight * F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


def loop_progress_bar(model, optimizer, loader):
    bar = Progress(loader)
    for x, y in bar:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        bar.set_postfix(loss=loss.item())
        optimizer.step()


def loop_two_loaders(model, optimizer, loader, *, num_items=2, can_bind=True):
    for (x, y), (z, _) in zip(loader, loader):
        loss = F.mse_loss(model(x), y) + model(z).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loop_accumulation_by_next(
    model, optimizer, loader, *, num_items=2, can_bind=True, is_exact=False
):
    source = iter(loader)
    for _ in range(3):
        optimizer.zero_grad()
        for _k in range(2):
            x, y = next(source)
            loss = F.mse_loss(model(x), y) / 2
            loss.backward()
        optimizer.step()
