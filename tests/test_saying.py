"""What we print stands on lines of its own, beside the script's progress bars."""

import io
import sys

import pytest

from stayfinite.saying import say

tqdm = pytest.importorskip("tqdm")


def test_a_progress_bar_steps_aside_and_is_drawn_again(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = tqdm.tqdm(total=4, file=sys.stderr, mininterval=0)
    bar.update(2)
    before = (bar.n, bar.last_print_n, bar.last_print_t)
    say("first\nsecond")
    shown = sys.stderr.getvalue()
    assert (bar.n, bar.last_print_n, bar.last_print_t) == before
    bar.close()
    assert "\rfirst\nsecond\n\r" in shown and shown.endswith("]") and "2/4" in shown.split("\n")[-1]


@pytest.mark.parametrize("name", ["clear", "refresh"])
def test_a_broken_bar_takes_no_message_away(name, monkeypatch):
    stream = io.StringIO()
    with monkeypatch.context() as broken:
        broken.setattr(sys, "stderr", stream)
        bar = tqdm.tqdm(total=4, file=stream)
        broken.setattr(bar, name, lambda **given: 1 / 0, raising=False)
        say("said")
    bar.close()
    assert stream.getvalue().count("said\n") == 1
