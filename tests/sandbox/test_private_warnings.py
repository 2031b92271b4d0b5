"""The filters of one replay, apart from those of the process."""

import warnings

import pytest

from stayfinite.sandbox.private_warnings import PrivateWarnings, action_for


def message(text="careful", category=UserWarning, lineno=3):
    return warnings.WarningMessage(category(text), category, "train.py", lineno)


def test_the_first_filter_that_fits_decides():
    filters = [
        ("ignore", None, DeprecationWarning, None, 0),
        ("error", None, UserWarning, None, 7),
        ("always", None, Warning, None, 0),
    ]
    assert action_for(filters, "old", DeprecationWarning, "train", 1) == "ignore"
    assert action_for(filters, "bad", UserWarning, "train", 7) == "error"
    assert action_for(filters, "bad", UserWarning, "train", 8) == "always"
    assert action_for([], "bad", UserWarning, "train", 8) == "default"


def test_a_filter_of_the_replay_raises_there_and_leaves_the_process_alone():
    own, before = PrivateWarnings(), list(warnings.filters)
    own.add_filter(("error", None, UserWarning, None, 0), append=False)
    with pytest.raises(UserWarning, match="careful"):
        own.handle(message(), "train")
    assert list(warnings.filters) == before


def test_a_recording_has_each_place_once_and_ends_with_its_catcher():
    own, catcher = PrivateWarnings(), warnings.catch_warnings(record=True)
    log = own.enter(catcher)
    assert own.has_entered(catcher)
    own.reset()
    for line in (3, 3, 4):
        own.handle(message(lineno=line), "train")
    own.leave(catcher)
    own.reset()
    own.handle(message(lineno=9), "train")
    assert [m.lineno for m in log] == [3, 4]
