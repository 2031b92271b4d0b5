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
