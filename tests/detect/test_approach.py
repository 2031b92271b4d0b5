"""An approach to a limit is told from noise, from a jump, and from a climb that ends."""

import math

from stayfinite.detect.approach import steps_left


def test_steady_approach_gives_the_steps_left():
    assert steps_left([(n, n / 88) for n in range(40, 68)]) == 21


def test_what_comes_nearer_ever_faster_is_extrapolated_from_its_last_rises():
    left = steps_left([(8, 0.1), (16, 0.2), (24, 0.53), (25, 0.65)])
    assert left is not None and 1 < left < 9


def test_single_jump_is_an_unusual_batch():
    assert steps_left([(8, 0.50), (9, 0.505), (10, 0.51), (11, 0.9)]) is None


def test_values_of_ordinary_size_are_silent_however_fast_they_grow():
    assert steps_left([(8, 0.1), (9, 0.2), (10, 0.3), (11, 0.4)]) is None


def test_trend_is_not_continued_far_beyond_what_was_seen():
    assert steps_left([(n, 0.5 + n * 1e-3) for n in range(8)]) is None


def test_curve_that_flattens_is_silent():
    points = [(n, 0.9 * (1 - math.exp(-n / 4))) for n in range(0, 40, 2)]
    assert all(steps_left(points[:i]) is None for i in range(9, len(points)))


def test_what_was_as_near_before_is_no_approach():
    assert steps_left([(0, 0.9), (8, 0.5), (9, 0.55), (10, 0.6), (11, 0.65)]) is None
