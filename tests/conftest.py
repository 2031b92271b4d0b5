"""Fixtures of the whole suite."""

import gc
import os
import random
import re
import sys

import numpy
import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.launch import the_nursery
from tests.preflight import forks

import stayfinite.guard  # noqa: F401
from stayfinite.investigate import diagnosis
from stayfinite.locate.trace import OpTrace
from stayfinite.patches import manager, provenance

# The notes that begin with this import end here, so that each test finds the same process.
provenance.remove(is_last_user=True)

# The compiler in this process: a pool of its own would import torch once more for each core.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A notice that torch gives once in a process would fail whichever test comes first: here each
# gives it always, so that a test's result does not depend on the others'.
torch.set_warn_always(True)

# The same examples every time, and no limit by the clock: a machine may be busy.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# A user's training goes on when an investigation fails; a test of ours does not.
OpTrace.is_strict = True

IS_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.M)

# Scripts are run, never imported: importing one would train.
collect_ignore_glob = ["scripts/*", "peers/scripts/*"]


def pytest_addoption(parser):
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in a random order")
    parser.addoption("--whole", action="store_true", help="whole sweeps, not a sample of each")


def pytest_ignore_collect(collection_path, config):
    """Files of which all is slow are not imported for nothing: some import a framework for seconds."""
    if config.option.markexpr != "not slow" or not collection_path.name.startswith("test_"):
        return None
    return True if IS_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config, items):
    """Tests that share something made for their module stay together, so that it is made once.

    The slow ones begin: at the end, the parallel processes share out what is short.
    """
    if not config.getoption("--whole"):
        left_out = [item for item in items if item.get_closest_marker("whole")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)
    else:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        made = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        if any(d.scope in ("module", "package") for defs in made.values() for d in defs):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Random numbers are the same every time, fixtures' too: some builds of torch seed themselves by chance."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def nursery():
    """Commands in processes of their own, without the seconds that each would import."""
    return the_nursery()


@pytest.fixture
def shared_forks(monkeypatch):
    """The same for `check` of a script inside this process."""
    forks.share(monkeypatch)


@pytest.fixture
def as_script(monkeypatch):
    """Room for running a script inside this process: what it changes of `sys` is put back."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def causes_only(monkeypatch):
    """The cause is found as ever; changes of the source, most of the work, are not looked for."""

    def no_fixes(*_):
        return ()
        yield

    monkeypatch.setattr(diagnosis, "proved_fixes", no_fixes)


@pytest.fixture(autouse=True)
def _no_patch_is_left():
    """A test that leaves a patch behind fails itself, and not whichever test comes next."""
    before = _subscriptions()
    yield
    if _subscriptions() - before:
        gc.collect()  # a guard that nobody holds closes itself
    left = _subscriptions() - before
    manager.close_all(list(left))
    modes = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False, check_nan=True)
    assert modes == (False, True), "anomaly mode was left as it was not found"
    assert not left, sorted(f"{s.target.owner}.{s.target.name}: {s.target.reason}" for s in left)


def _subscriptions():
    patches = [p for patches in list(manager._manager._patches.values()) for p in patches]
    return {s for p in patches for layer in p.layers for s in layer.subscriptions}
