"""The box: what it holds by itself, and what a file may say."""

import json

import pytest
import torch
from tests.foresee.judging import capture_steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite.errors import UsageError
from stayfinite.foresee.intervals.box import (
    Box,
    batch_sizes_of,
    box_around,
    reach_of,
    read_box,
    widened_by,
)
from stayfinite.locate.notes import SourceRef

BOX = Box(data={"batch[0]": (-1.0, 2.0)}, weights={"fc.weight": 0.1}, batch_sizes=(4,))


def test_a_part_is_between_its_smallest_and_largest_value_and_counts_begin_at_0():
    parts = {
        "x": torch.tensor([0.5, 2.5]),
        "count": torch.tensor([3, 9]),
        "nan": torch.tensor([1.5, float("nan")]),
    }
    taken = capture_steps(
        lambda: parts["x"] + 1, [SourceRef("batch", n, t) for n, t in parts.items()]
    )
    box = box_around(taken)
    assert box.data == {"x": (0.5, 2.5), "count": (0.0, 9.0), "nan": (1.5, 1.5)}
    assert widened_by(box, [("x", torch.tensor([-1.5])), ("other", torch.zeros(1))]).data["x"] == (
        -1.5,
        2.5,
    )


def test_the_last_batch_of_an_epoch_is_one_of_the_sizes():
    data = TensorDataset(torch.zeros(9, 1))
    assert batch_sizes_of([DataLoader(data, batch_size=4)], [4]) == (1, 4)
    assert batch_sizes_of([DataLoader(data, batch_size=4, drop_last=True)], [4]) == (4,)
    assert batch_sizes_of([[torch.zeros(3)]], [3]) == (3,)


def test_weights_reach_as_far_as_the_rate_and_the_gradient_take_them():
    fc = nn.Linear(2, 1, bias=False)
    names = {id(fc.weight): "fc.weight"}
    adam = torch.optim.Adam(fc.parameters(), lr=1e-3)
    assert reach_of([adam], names, 100) == {"fc.weight": pytest.approx(0.1)}
    sgd = torch.optim.SGD(fc.parameters(), lr=0.1)
    assert reach_of([sgd], names, 10, clip_norm=2.0) == {"fc.weight": pytest.approx(2.0)}
    assert reach_of([sgd], names, 10, gradients={id(fc.weight): 0.5}) == {
        "fc.weight": pytest.approx(0.5)
    }


def test_a_file_says_what_it_wants_otherwise(tmp_path):
    path = tmp_path / "box.json"
    path.write_text(
        json.dumps({"data": {"batch[0]": [0, 1]}, "weights": 0.5, "batch_sizes": [1, 4]})
    )
    box = read_box(path, BOX)
    assert (box.data, box.weights, box.batch_sizes) == (
        {"batch[0]": (0.0, 1.0)},
        {"fc.weight": 0.5},
        (1, 4),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"dta": {}}', "unknown dta; valid are: data, weights, num_steps, batch_sizes"),
        ('{"data": {"batch[3]": [0, 1]}}', "the batch has no part 'batch[3]'; its parts: batch[0]"),
        ('{"data": {"batch[0]": [2, 1]}}', "batch[0] must be [smallest, largest], got [2, 1]"),
        ("{", "Expecting"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path, content, message):
    path = tmp_path / "box.json"
    path.write_text(content)
    with pytest.raises(UsageError) as e:
        read_box(path, BOX)
    assert message in str(e.value)
