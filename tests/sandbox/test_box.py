"""Only the thread that replays is concerned."""

import threading

import pytest

from stayfinite.sandbox.box import Report, here, only_here, outside
from stayfinite.sandbox.compute import computing_only


def test_a_report_counts_and_is_silent_when_there_is_nothing():
    report = Report()
    assert report.text() == ""
    report.add("a fork")
    report.add("a signal")
    report.add("a fork")
    assert report.text() == "not done during the replay: a fork (2 times), a signal"


def test_other_threads_see_no_replay():
    call = only_here(lambda box, original, args, kwargs: "replayed")(lambda: "original", ())
    seen = []
    with computing_only():
        thread_call = threading.Event()
        assert call() == "replayed"
        assert outside(call) == "original"
        assert call() == "replayed"
        thread_call.set()
    assert call() == "original"

    def other():
        seen.append((here.box, call()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(None, "original")]


def test_what_is_called_outside_comes_back_in_when_it_raises():
    with computing_only():
        with pytest.raises(ZeroDivisionError):
            outside(lambda: 1 / 0)
        assert here.box is not None
