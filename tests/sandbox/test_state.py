"""Switches that a replay turns are turned back, also when it raises."""

import gc
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite.sandbox import computing_only


def state():
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "cache": torch.is_autocast_cache_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "multithreading": torch._C._is_multithreading_enabled(),
        "path": list(sys.path),
        "numpy": np.geterr(),
        "recursion": sys.getrecursionlimit(),
        "gc": gc.isenabled(),
    }


class Mode(TorchDispatchMode):
    pass


_open = []


def _left_open(context):
    """Freeing an inference mode would end it."""
    _open.append(context)
    context.__enter__()


TURNS = {
    "grad": lambda: torch.set_grad_enabled(False),
    "inference": lambda: _left_open(torch.inference_mode()),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16).__enter__(),
    "cache": lambda: torch.set_autocast_cache_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "warn_only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fill": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "matmul": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "modes": lambda: Mode().__enter__(),
    "path": lambda: sys.path.insert(0, "somewhere"),
    "numpy": lambda: np.seterr(all="raise"),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 10),
    "gc": lambda: gc.disable(),
}


@pytest.mark.parametrize("name", TURNS)
def test_a_switch_is_turned_back(name):
    before, path = state(), sys.path
    with computing_only():
        TURNS[name]()
        changed = state()
    assert changed[name] != before[name]
    assert state() == before
    with pytest.raises(ValueError), computing_only():
        TURNS[name]()
        raise ValueError
    assert state() == before
    assert sys.path is path
    x = torch.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_the_users_own_switches_stay_on():
    with torch.no_grad(), torch.autocast("cpu"), Mode():
        before = state()
        with computing_only():
            torch.set_grad_enabled(True)
            torch.autocast("cpu", enabled=False).__enter__()
        assert state() == before
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_weights_cast_by_a_replay_are_not_used_by_the_training():
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).sum().backward()  # its graph, with the cast of the weight, is freed
        with computing_only():
            layer(x).sum().backward()
            with torch.no_grad():
                layer(x)
        layer.zero_grad()
        layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_the_random_state_is_the_callers():
    torch.manual_seed(0)
    with computing_only():
        torch.rand(1)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.rand(1)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("is_started", [True, False])
def test_the_device_is_put_back_and_no_driver_is_started_for_it(is_started, monkeypatch):
    class Driver:
        is_initialized = staticmethod(lambda: is_started)

    device = {"index": 1, "asked": 0}

    def current():
        device["asked"] += 1
        return device["index"]

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda accelerator: Driver)
    monkeypatch.setattr(torch.accelerator, "current_device_index", current)
    monkeypatch.setattr(
        torch.accelerator, "set_device_index", lambda index: device.update(index=index)
    )
    with computing_only():
        device["index"] = 0
        torch.set_autocast_enabled("cuda", True)
    assert not torch.is_autocast_enabled("cuda")
    assert (device["index"] == 1) == is_started
    assert (device["asked"] > 0) == is_started
