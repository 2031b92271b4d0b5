"""A signal handler and an old finalizer are the training's, also in the middle of a replay."""

import gc
import os
import signal

import pytest

from stayfinite.sandbox import computing_only

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")
real_kill = [os.kill]


@pytest.fixture
def handled(tmp_path):
    """A handler that saves a checkpoint, as jobs do before they are taken away."""

    def save(number, frame):
        (tmp_path / "checkpoint.txt").write_text("saved")
        print("saved")

    before = signal.signal(signal.SIGUSR1, save)
    yield save
    signal.signal(signal.SIGUSR1, before)


def test_a_handler_really_does_what_it_does(handled, tmp_path, capfd):
    interrupt = signal.getsignal(signal.SIGINT)
    with computing_only():
        print("muted")
        real_kill[0](os.getpid(), signal.SIGUSR1)
        print("muted again")
        (tmp_path / "mine.txt").write_text("x")
    assert (tmp_path / "checkpoint.txt").read_text() == "saved"
    assert not (tmp_path / "mine.txt").exists()
    assert capfd.readouterr().out == "saved\n"
    assert signal.getsignal(signal.SIGUSR1) is handled
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_a_handler_that_raises_ends_the_replay_and_is_put_back(handled):
    def stop(number, frame):
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, stop)
    with pytest.raises(SystemExit), computing_only():
        real_kill[0](os.getpid(), signal.SIGUSR1)
        for _ in range(1000):
            pass
    assert signal.getsignal(signal.SIGUSR1) is stop


class Node:
    def __init__(self, text):
        self.me, self.text = self, text

    def __del__(self):
        print(self.text)


def test_older_garbage_is_finalized_when_it_can_be_heard(capfd):
    gc.collect()
    num_frozen = gc.get_freeze_count()
    gc.disable()
    try:
        Node("old")
        with computing_only():
            Node("new")
            gc.collect()
        assert capfd.readouterr().out == ""
        gc.collect()
    finally:
        gc.enable()
    assert capfd.readouterr().out == "old\n"
    assert gc.get_freeze_count() == num_frozen == 0


def test_what_the_user_has_frozen_stays_frozen():
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with computing_only():
            pass
        assert gc.get_freeze_count() >= before - 1000 > 0
    finally:
        gc.unfreeze()
