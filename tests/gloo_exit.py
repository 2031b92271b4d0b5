"""Keeps a deadlock of torch's own (2.13) at the end of a DDP training out of the tests' processes.

Each backward leaves a Python object with the all-reduces that it starts. On a busy machine gloo's thread drops
the last of them only while the main thread, which holds the GIL, already waits for that thread to end.
"""

import torch


def avoid() -> None:
    """No such object: it only carries the compiler's settings to the threads of other devices."""
    if hasattr(torch._C, "_remove_obj_from_tls"):
        torch._C._stash_obj_in_tls = lambda name, value: None
        torch._C._remove_obj_from_tls = lambda name: None
