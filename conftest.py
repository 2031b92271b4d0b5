"""For all tests, doctests in `src` among them."""

import gc
import sys

import pytest


@pytest.fixture(autouse=True)
def _no_gate_left_open(request):
    """A guard that an earlier test dropped holds bad saves back until it is collected."""
    manager = sys.modules.get("stayfinite.patches.manager")
    if manager and manager.table() and "checkpoint" in request.node.nodeid:
        gc.collect()
    yield


@pytest.fixture
def restores_are_noted():
    """As for a script that has imported `Guard`: with the last guard that was closed the notes end."""
    from stayfinite.patches import provenance

    provenance.install()
    yield
    provenance.remove()


def pytest_ignore_collect(collection_path):
    """A module without an example in its docstrings is not imported for nothing: some import a framework for seconds."""
    name = collection_path.name
    if not name.endswith(".py") or name.startswith("test_") or name == "conftest.py":
        return None
    return None if ">>>" in collection_path.read_text(encoding="utf-8") else True
