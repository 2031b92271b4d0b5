"""Warnings in a replay: filtered as ever, never shown, never used up."""

import sys
import threading
import warnings
from warnings import warn as warn_by_name

import numpy as np
import pytest

from stayfinite.sandbox import computing_only


@pytest.fixture(params=["default", "once", "module", "always"])
def shown(request):
    """Warnings as a user sees them, with one filter for all."""
    seen = []
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter(request.param)
        warnings.showwarning = lambda *args, **kwargs: seen.append(str(args[0]))
        globals().pop("__warningregistry__", None)
        warnings.onceregistry.clear()
        yield seen
    globals().pop("__warningregistry__", None)
    warnings.onceregistry.clear()


def by_attribute():
    warnings.warn("by attribute", UserWarning, stacklevel=1)


def by_name():
    warn_by_name("by name", UserWarning, stacklevel=1)


def from_c():
    np.log(np.zeros(1))


def explicit():
    registry = globals().setdefault("__warningregistry__", {})
    warnings.warn_explicit("explicit", UserWarning, __file__, 1, registry=registry)


def registries():
    found = {
        n: {k: v for k, v in r.items() if k != "version"}
        for n, m in list(sys.modules.items())
        if isinstance(r := getattr(m, "__dict__", {}).get("__warningregistry__"), dict)
    }
    return {n: r for n, r in found.items() if r}, dict(warnings.onceregistry)


@pytest.mark.parametrize("give", [by_attribute, by_name, from_c, explicit])
def test_a_warning_in_a_replay_is_not_shown_and_comes_later_as_if_for_the_first_time(give, shown):
    before = registries()
    with computing_only():
        give()
        give()
    assert shown == []
    assert registries() == before
    give()
    assert len(shown) == 1


def test_one_that_was_shown_before_is_not_shown_again(shown):
    for give in (by_attribute, by_name, from_c):
        give()
    num_shown, before = len(shown), registries()
    with computing_only():
        for give in (by_attribute, by_name, from_c):
            give()
    assert (len(shown), registries()) == (num_shown, before)


def test_filters_of_a_replay_are_its_own(shown):
    filters, before = warnings.filters, list(warnings.filters)
    by_attribute()
    num_shown = len(shown)
    with computing_only():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for give in (by_attribute, by_name, from_c):
                with pytest.raises(Warning):
                    give()
            assert warnings.filters is filters and list(filters) == before
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            by_attribute()
            by_name()
            from_c()
        assert [str(w.message)[:8] for w in log] == ["by attri", "by name", "divide b"]
        with pytest.warns(UserWarning, match="by attribute"):
            by_attribute()
        warnings.filterwarnings("ignore", message="x")
        warnings.resetwarnings()
    assert warnings.filters is filters and list(filters) == before
    assert len(shown) == num_shown
    if filters[0][0] != "always":
        by_attribute()  # the version of the filters was not counted up: it has been shown
        assert len(shown) == num_shown


def test_once_in_a_recording_is_once():
    with computing_only(), warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("once")
        for _ in range(3):
            by_attribute()
        warnings.simplefilter("default")
        for _ in range(3):
            by_attribute()
            by_name()
    assert [str(w.message) for w in log] == ["by attribute", "by attribute", "by name"]
    assert log[0].filename == __file__


def test_a_catcher_from_before_may_be_left_in_a_replay():
    catcher = warnings.catch_warnings()
    filters = warnings.filters
    catcher.__enter__()
    with computing_only():
        catcher.__exit__(None, None, None)
    assert warnings.filters is filters


def test_another_threads_warnings_are_all_shown():
    seen, stop, errors = [], threading.Event(), []
    num = {"given": 0}

    def work():
        try:
            while not stop.is_set() or num["given"] < 100:
                num["given"] += 1
                warnings.warn(f"number {num['given']}", UserWarning, stacklevel=1)
        except BaseException as error:
            errors.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *args, **kwargs: seen.append(str(args[0]))
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(50):
            with computing_only(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                by_attribute()
                from_c()
        stop.set()
        thread.join()
    assert errors == []
    assert seen == [f"number {i}" for i in range(1, num["given"] + 1)]
