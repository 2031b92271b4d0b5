"""Reading source: what is never filled."""

import pytest

from stayfinite.diagnose.unfilled import filling_of

HEAD = "class M(nn.Module):\n    def __init__(self, n, w):\n"


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("self.w = nn.Parameter(torch.empty(n))", "unfilled"),
        ("self.w = nn.Parameter(torch.Tensor(n, 3))", "unfilled"),
        ("self.w = nn.Parameter(torch.Tensor([1.0, 2.0]))", "filled"),
        ("self.w = nn.Parameter(torch.zeros(n))", "filled"),
        ("self.register_buffer('w', torch.empty(n))", "unfilled"),
        ("self.w = nn.Parameter(torch.empty(n)); nn.init.normal_(self.w)", "covered"),
        ("self.w = nn.Parameter(torch.empty(n)); self.w.data.zero_()", "covered"),
        ("self.w = nn.Parameter(nn.init.zeros_(torch.empty(n)))", "filled"),
        ("t = torch.empty(n)\n        t[:2] = 1\n        self.w = nn.Parameter(t)", "partly"),
        ("t = torch.empty(n)\n        t[:] = 1\n        self.w = nn.Parameter(t)", "filled"),
        (
            "t = torch.empty(n)\n        t[0] = 1\n        self.register_buffer('w', t / t.sum())",
            "partly",
        ),
        ("self.v = 1", "unknown"),
    ],
)
def test_what_becomes_of_fresh_memory(body, state):
    assert filling_of(HEAD + f"        {body}\n", "w").state == state


def test_fresh_memory_of_a_helper_function():
    text = "def table(n):\n    t = torch.empty(n)\n    t[0] = 1\n    return t\n" + HEAD
    found = filling_of(text + "        self.w = nn.Parameter(table(n))\n", "w")
    assert (found.state, found.line, found.source) == ("partly", 2, "t = torch.empty(n)")


def test_fresh_memory_that_is_handed_in():
    text = (
        HEAD
        + "        self.w = nn.Parameter(w)\ndef build():\n    t = torch.empty(3)\n    return M(3, t)\n"
    )
    found = filling_of(text, "w")
    assert found.is_indirect and found.state == "unfilled"


def test_a_broken_file_says_nothing():
    assert filling_of("class (", "w").state == "unknown"
