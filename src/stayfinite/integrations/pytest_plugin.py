"""`pytest --stayfinite`: a test in which a NaN or Inf is born fails, with operator, line and cause.

Without the option (and without the fixture `finite`) nothing is patched, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..records import Incident
    from .watched_test import WatchedTest

__all__ = ["Finite", "finite"]

_watched: Any = pytest.StashKey["WatchedTest"]()
_MARK = "nonfinite: this test is about values that are not finite; `--stayfinite` leaves it alone"


class Finite:
    """The value of the fixture `finite`: what was found in this test so far."""

    def __init__(self, watched: WatchedTest | None) -> None:
        self._watched = watched

    @property
    def incidents(self) -> list[Incident]:
        return self._watched.incidents if self._watched is not None else []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stayfinite")
    group.addoption(
        "--stayfinite",
        action="store_true",
        help="fail tests in which a NaN or Inf is born and reaches a loss, a gradient or a parameter",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


@pytest.fixture
def finite(request: pytest.FixtureRequest) -> Finite:
    """This test is watched, with or without `--stayfinite`: a NaN or Inf in its training fails it."""
    return Finite(request.node.stash.get(_watched, None))


def _is_wanted(item: pytest.Item) -> bool:
    if item.get_closest_marker("nonfinite") is not None:
        return False
    return "finite" in getattr(item, "fixturenames", ()) or item.config.getoption("stayfinite")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Start before the fixtures, to note the optimizers that they make."""
    if _is_wanted(item):
        from .watched_test import WatchedTest

        item.stash[_watched] = WatchedTest(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    watched = item.stash.get(_watched, None)
    if watched is None:
        return (yield)
    names = {**vars(getattr(item, "module", None) or item), **getattr(item, "funcargs", {})}
    watched.begin({**names, "self": getattr(item, "instance", None)})
    try:
        result = yield
    except BaseException as error:
        watched.close(error)
        watched.shorten(error)
        raise
    watched.close()
    if watched.incidents:
        pytest.fail(watched.headline(), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    watched = item.stash.get(_watched, None)
    if watched is not None:
        watched.close()  # where a fixture has failed
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    report = yield
    watched = item.stash.get(_watched, None)
    if watched is not None and call.when == "call" and report.failed:
        report.sections += [("stayfinite", text) for text in watched.texts()]
    return report
