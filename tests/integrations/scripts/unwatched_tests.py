"""Without the option: nothing is imported, nothing is patched."""
import sys


def test_torch_is_not_imported():
    assert "torch" not in sys.modules
    assert "stayfinite.integrations.pytest_plugin" in sys.modules


def test_nan_is_nobodys_business():
    import torch
    from stayfinite.patches.manager import table

    torch.zeros(3, requires_grad=True).log().sum().backward()
    assert table() == []


def test_the_fixture_watches_without_the_option(finite):
    import torch

    x = torch.zeros(3, requires_grad=True)
    try:
        x.log().sum().backward()
    finally:
        assert finite.incidents[0].diagnosis.cause == "log_of_zero"
