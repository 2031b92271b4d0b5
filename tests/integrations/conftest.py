"""Real frameworks, in this process; whatever a test opens is closed at its end."""

import gc

import pytest

from stayfinite.patches.manager import table
from stayfinite.report import terminal
from stayfinite.runtime import script

collect_ignore_glob = ["scripts/*"]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    terminal._told.clear()
    # What an earlier test left open also patches the modules that are imported meanwhile.
    before = {r.reason for r in table()}
    yield
    gc.collect()  # a trainer and its callbacks hold each other
    left = {(r.owner, r.name, r.reason) for r in table() if r.reason not in before}
    assert not left
    assert script._listening == []
