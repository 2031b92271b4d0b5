"""What our code raises is reported once, and the training goes on."""

import sys

import pytest
import torch

from stayfinite.errors import UsageError
from stayfinite.patches import Firewall, failures, guarded


@pytest.fixture(autouse=True)
def _nothing_reported_before(monkeypatch):
    monkeypatch.setattr("stayfinite.patches.firewall._failures", {})


def deep(n=0):
    return deep(n + 1)


def raising(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize(
    "function",
    [
        raising(ValueError("a bug\nof ours")),
        raising(MemoryError()),
        raising(torch.OutOfMemoryError("CUDA out of memory")),
        deep,
    ],
)
def test_a_failure_is_reported_once_and_ends_the_protection(function, capsys):
    ended = []
    firewall = Firewall("the loss check", on_failure=lambda: ended.append(1))
    assert firewall.call(function, fallback="plain") == "plain"
    assert firewall.is_down
    assert firewall.call(len, [1, 2], fallback="plain") == "plain"
    again = Firewall("the loss check")
    assert again.call(function) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("stayfinite: the loss check failed (")
    assert said.endswith("; this protection is off from now on; the training goes on\n")
    assert ended == [1]
    assert list(failures()) == ["the loss check"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), UsageError("on purpose")])
def test_what_is_raised_on_purpose_goes_through(error):
    firewall = Firewall("a check")
    with pytest.raises(type(error)):
        firewall.call(raising(error))
    assert not firewall.is_down


def test_a_guarded_function_falls_back_from_its_first_failure_on(capsys):
    calls = []

    def check(x, fallback=0):
        calls.append(x)
        return 1 / x

    safe = guarded(check, lambda x, fallback=0: ("fallback", x, fallback))
    assert safe(2, fallback=7) == 0.5
    assert safe(0, fallback=7) == ("fallback", 0, 7)
    assert safe(2) == ("fallback", 2, 0)
    assert calls == [2, 0]
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_a_broken_stderr_and_a_failing_callback_do_not_matter(monkeypatch):
    class Broken:
        def write(self, text):
            raise OSError("gone")

    for stream in (Broken(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        firewall = Firewall(f"a check {stream}", on_failure=raising(ValueError()))
        assert firewall.call(raising(ValueError("x")), fallback=1) == 1
        assert firewall.is_down
