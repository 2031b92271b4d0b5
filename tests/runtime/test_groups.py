"""What is known of the ranks' process groups, without any."""

import threading

import torch

from stayfinite.runtime.ranks.groups import let_threads_finish


def test_a_thread_that_wants_to_run_is_waited_for():
    """It computes without the interpreter's lock; on a busy machine it waits for its turn."""
    has_begun, seen = threading.Event(), []

    def compute():
        has_begun.set()
        torch.randn(8_000_000).sort()
        seen.append("done")

    thread = threading.Thread(target=compute)
    thread.start()
    has_begun.wait()
    let_threads_finish(seconds=600.0)
    assert seen == ["done"]
    thread.join()


def test_threads_that_only_wait_are_not_waited_for():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    let_threads_finish(seconds=600.0)  # ends by itself, or the suite would stand still
    end.set()
    thread.join()
