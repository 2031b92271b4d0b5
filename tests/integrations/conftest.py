"""Real frameworks, in this process; whatever a test opens is closed at its end."""

import gc

import pytest

from stayfinite.report import terminal
from stayfinite.runtime.script import run_script as script

collect_ignore_glob = ["scripts/*"]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    terminal._num_reported.clear()
    yield
    if script._listening:
        gc.collect()  # a trainer and its callbacks hold each other
    assert script._listening == []
