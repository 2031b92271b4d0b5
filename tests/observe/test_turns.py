"""A loop over a range makes no turn while its body is run again."""

import sys

import pytest

from stayfinite.observe.counters import frames_above
from stayfinite.observe.turns import Turns, loop_lines


class Stream:
    """Hands out its fourth item three times more; `step` is what the optimizer's step does."""

    def __init__(self, count=20):
        self.turns = None
        self.items = self._items(count)

    def _items(self, count):
        for item in range(count):
            yield item
            if item == 3:
                self.turns = Turns(frames_above(sys._getframe()))
                for _ in range(3):
                    yield f"again {item}"
                self.turns.close()

    def step(self):
        if self.turns is not None:
            self.turns.note_step()


AGAIN = [0, 1, 2, 3, "again 3", "again 3", "again 3", 4, 5, 6]


def test_a_range_is_not_used_up():
    stream, seen = Stream(), []
    for i in range(7):
        item = next(stream.items)
        stream.step()
        seen.append((i, item))
    assert [item for _, item in seen] == AGAIN
    assert [i for i, _ in seen] == [0, 1, 2, 3, 4, 4, 4, 4, 5, 6]
    assert sys.gettrace() is None


def test_a_first_statement_over_several_lines():
    stream, seen = Stream(), []
    for i in range(7):
        """A text is no code."""
        item = next(stream.items) if i >= 0 else None
        stream.step()
        seen.append(item)
    assert seen == AGAIN


def test_the_loop_with_the_step_counts_not_the_one_over_its_parts():
    stream, seen = Stream(), []
    for i in range(3):
        parts = []
        for _ in range(2):
            parts.append(next(stream.items))
        stream.step()
        seen.append((i, *parts))
    # The items after the third pair belong to the turn that was already begun.
    assert seen == [(0, 0, 1), (1, 2, 3), (2, "again 3", "again 3"), (2, "again 3", 4)]


def test_a_step_in_a_function_and_items_from_another():
    stream, seen = Stream(), []

    def fetch():
        for _ in range(1):
            item = next(stream.items)
        return item

    def train(item):
        stream.step()
        seen.append(item)

    for _ in range(7):
        train(fetch())
    assert seen == AGAIN


def test_a_loop_over_the_items_themselves_is_left_alone():
    stream, seen = Stream(6), []
    for item in stream.items:
        assert sys.gettrace() is None
        stream.step()
        seen.append(item)
    assert seen == [0, 1, 2, 3, "again 3", "again 3", "again 3", 4, 5]


def test_a_loop_that_is_left_and_entered_again_counts_as_ever():
    stream, seen = Stream(), []
    for epoch in range(2):
        for i in range(6):
            item = next(stream.items)
            stream.step()
            seen.append((epoch, i, item))
            if epoch == 0 and item == "again 3":
                break
    assert [s[:2] for s in seen if s[0] == 1] == [(1, i) for i in range(6)]


def test_a_debugger_is_not_disturbed():
    stream, seen = Stream(), []

    def follow(frame, event, arg):
        return None

    sys.settrace(follow)
    try:
        for i in range(7):
            seen.append((i, next(stream.items)))
            stream.step()
        assert sys.gettrace() is follow
    finally:
        sys.settrace(None)
    assert [i for i, _ in seen] == list(range(7))


@pytest.mark.parametrize("kind", ["while", "none"])
def test_other_loops(kind):
    stream, seen = Stream(), []
    if kind == "while":
        while len(seen) < 10:
            seen.append(next(stream.items))
            stream.step()
    else:
        for _ in range(3):
            seen.append(next(stream.items))
            stream.step()
        seen += [next(stream.items) for _ in range(7)]
    assert seen == AGAIN and sys.gettrace() is None


def test_the_lines_of_a_loop():
    frame = sys._getframe()
    assert loop_lines(frame) is None
    for _ in range(1):
        for _ in [1]:
            lines = loop_lines(frame)  # for one of the two, who knows
    assert len(lines) == 3
    for lines in map(loop_lines, [frame]):
        for lines in map(loop_lines, [frame]):
            assert len(lines) == 2  # the one whose head waits


def test_a_loop_that_is_left_is_not_followed_any_more():
    stream = Stream()

    def train():
        for _ in range(9):
            item = next(stream.items)
            stream.step()
            if item == "again 3":
                return

    train()
    assert sys.gettrace() is None
