"""A batch that one of the loader's own processes has corrupted."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from stayfinite import Guard
from stayfinite.report.text import render


class Shares(Dataset):
    """Only in the process whose number is 0 there is something wrong."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        x = torch.arange(4.0) + i
        scale = float(get_worker_info().id)
        return torch.log(x * scale) if i in (17, 18) else x / 24  # HERE


def test_the_process_the_samples_and_the_line_are_named():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer)
    for x in guard(DataLoader(Shares(), batch_size=4, num_workers=2)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    guard.close()
    assert get_worker_info() is None
    (incident,) = guard.incidents
    assert incident.event.phase == "data"
    assert incident.diagnosis.cause == "bad_preprocessing"
    lines, first = inspect.getsourcelines(Shares)
    assert incident.location.line == first + next(i for i, t in enumerate(lines) if "# HERE" in t)
    assert incident.diagnosis.dataset_indices == (17, 18)
    assert incident.diagnosis.worker == 0
    assert "read by worker 0 of the DataLoader" in render(incident)


def test_the_samples_are_those_of_this_epoch_where_the_workers_stay():
    torch.manual_seed(0)
    data = torch.randn(32, 4)
    data[21, 0] = float("nan")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    with Guard(model, optimizer) as guard:
        for epoch in range(2):
            for i, x in enumerate(guard(loader)):
                if epoch == 0 and i == 2:
                    break  # what was asked for ahead is never read
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        (incident,) = guard.incidents
    assert incident.diagnosis.dataset_indices == (21,)


class Prices(Dataset):
    def __init__(self, prices):
        self.x = torch.ones(len(prices), 4)
        self.y = torch.as_tensor(np.log(prices)).float()  # MADE

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@pytest.mark.parametrize(
    ("price", "cause"), [(0.0, "bad_preprocessing"), (np.inf, "bad_input_data")]
)
def test_a_logarithm_that_a_data_set_takes_when_it_is_made_is_part_of_the_pipeline(price, cause):
    prices = np.arange(1.0, 17.0)
    prices[9] = price
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with np.errstate(divide="ignore"), Guard(model, optimizer) as guard:
        for x, y in guard(DataLoader(Prices(prices), batch_size=4)):
            optimizer.zero_grad()
            (model(x).squeeze(1) - y).square().mean().backward()
            optimizer.step()
        (incident,) = guard.incidents
    assert incident.diagnosis.cause == cause
    lines, first = inspect.getsourcelines(Prices)
    made = first + next(i for i, t in enumerate(lines) if "# MADE" in t)
    assert (incident.location.culprit.line == made) == (cause == "bad_preprocessing")


def standardized(x):
    return (x - x.mean(0)) / x.std(0)  # WARNED


@pytest.mark.filterwarnings("default:invalid value:RuntimeWarning")
def test_the_line_that_numpy_has_warned_of_has_made_what_the_data_set_stores():
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    x[:, 2] = 0.0
    data = torch.from_numpy(standardized(x))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer) as guard:
        for batch in guard(DataLoader(data, batch_size=4)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    incident = guard.incidents[0]
    assert incident.diagnosis.cause == "bad_preprocessing"
    _lines, first = inspect.getsourcelines(standardized)
    assert incident.location.culprit.line == first + 1
    assert "NumPy warned there: invalid value" in " ".join(render(incident).split())


class Augmented(Dataset):
    """Each sample is drawn from a generator of its own, or jittered by the common one."""

    def __init__(self, has_own):
        self.has_own = has_own

    def __len__(self):
        return 24

    def __getitem__(self, i):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        x = torch.full((4,), 2.0) if i == 13 else x
        jitter = 0.0 if self.has_own else 0.1 * torch.randn(())
        return (x - x.mean()) / x.std() + jitter  # MADE_BAD


@pytest.mark.parametrize("has_own", [True, False])
def test_a_data_set_that_draws_random_numbers_is_asked_again(has_own):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer) as guard:
        for x in guard(DataLoader(Augmented(has_own), batch_size=4)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    (incident,) = guard.incidents
    assert incident.diagnosis.cause == "bad_preprocessing"
    assert incident.location.culprit.source.endswith("# MADE_BAD")
    first = incident.diagnosis.fixes[0]
    assert first.status == "proved" and "are the same" in first.proof.note
