"""An ordinary skip is no news; a scale that collapses is."""

import pytest

from stayfinite.detect import ScaleWatch


def test_now_and_then_is_ordinary():
    watch = ScaleWatch()
    for _ in range(100):
        assert not any(watch.note_skip(2.0**k) for k in range(16, 8, -1))
        watch.note_applied()


def test_twenty_in_a_row_is_a_collapse():
    watch = ScaleWatch()
    found = [watch.note_skip(2.0**60) for _ in range(20)]
    assert found == [False] * 19 + [True]


@pytest.mark.parametrize("scale", [2.0**-10, 1e-30, 0.0])
def test_a_scale_below_the_floor_is_a_collapse_at_once(scale):
    assert ScaleWatch().note_skip(scale)


def test_just_above_the_floor_is_not():
    assert not ScaleWatch().note_skip(2.0**-9)


def test_an_applied_step_starts_the_count_again():
    watch = ScaleWatch(limit=3)
    watch.note_skip(8.0), watch.note_skip(4.0)
    watch.note_applied()
    assert [watch.note_skip(2.0) for _ in range(3)] == [False, False, True]
