"""A climb is distinguished from a spike, from noise and from a slow drift."""

import pytest

from stayfinite.detect import climb

LIMIT = 3.4e38


def test_steady_growth_is_reported_with_the_steps_that_are_left():
    found = climb([1.0, 1.2, 0.9, 1.0, 10.0, 100.0, 1000.0], LIMIT)
    assert found.num_steps == 4 and found.steps_left == pytest.approx(35.5, abs=0.1)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0, 1.0, 500.0],
        [1.0, 1.1, 1.2, 500.0],
        [1.0, 2.0, 4.0, 8.0],
        [1.0, 10.0, 100.0, 1000.0, 900.0],
        [1000.0, 100.0, 10.0, 1.0],
        [1.0, float("inf"), 2.0],
        [0.0, 0.0, 0.0],
        [],
    ],
)
def test_spikes_noise_and_what_falls_again_are_no_climb(values):
    assert climb(values, LIMIT) is None


def test_half_precision_is_left_sooner():
    values = [1.0, 8.0, 64.0]
    assert climb(values, 65504.0).steps_left < climb(values, LIMIT).steps_left / 10


def test_text_names_the_figure_and_the_dtype():
    found = climb([1.0, 10.0, 100.0], 65504.0)
    assert found.describe("loss", "float16") == (
        "the loss has grown from 1 to 100 in 2 steps: at this pace it leaves the range of float16 in "
        "about 3 steps"
    )
