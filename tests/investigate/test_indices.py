"""The first bad value is named by its sample's position in the data set, which a shuffled batch does not tell."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import Guard


class Unlisted(torch.utils.data.IterableDataset):
    """Gives the same samples, whose positions nobody knows."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


def train(loader, accumulate=1):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    for i, (x,) in enumerate(guard(loader)):
        if i % accumulate == 0:
            optimizer.zero_grad()
        torch.log(model(x).square() * x[:, :1]).mean().backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
    guard.close()
    return guard.incidents


def samples(*bad):
    x = torch.rand(24, 3) + 0.5
    x[list(bad), 0] = 0
    return TensorDataset(x)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_sample_is_named_by_its_position_in_the_data_set(accumulate):
    shuffle = torch.Generator().manual_seed(3)
    loader = DataLoader(samples(17), batch_size=4, shuffle=True, generator=shuffle)
    (incident,) = train(loader, accumulate)
    assert incident.location.first_bad == "sample 17 of the data set, feature 0"


def test_a_sample_whose_position_is_unknown_is_named_by_its_place_in_the_batch():
    (incident,) = train(DataLoader(Unlisted(samples(17)), batch_size=4))
    assert incident.location.first_bad == "sample 1, feature 0"


def test_an_incident_that_is_only_counted_names_no_sample_of_another_batch():
    first, second = train(DataLoader(samples(5, 17), batch_size=4))
    assert first.location.first_bad == "sample 5 of the data set, feature 0"
    assert second.same_as == first.id and second.location.first_bad == ""
