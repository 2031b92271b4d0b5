"""Reading source: what is never filled, and the safe form of a line."""

import pytest

from stayfinite.diagnose.rewrite import log_space_form, safe_form
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


@pytest.mark.parametrize(
    ("source", "op", "safe"),
    [
        ("y = p.log() * 2", "log", "y = safe_log(p) * 2"),
        (
            "return torch.sqrt(((a - b) ** 2).sum(1))",
            "sqrt",
            "return safe_sqrt(((a - b) ** 2).sum(1))",
        ),
        ("z = x ** p", "pow", "z = safe_pow(x, p)"),
        ("d = torch.linalg.vector_norm(x, dim=1)", "norm", "d = safe_norm(x, dim=1)"),
        ("y = f(x)", "log", None),
        ("y = g(", "log", None),
        ("y = p.log()", "digamma", None),
        (None, "log", None),
    ],
)
def test_the_safe_form_of_a_line(source, op, safe):
    assert safe_form(source, op) == safe


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("loss = -torch.log(torch.sigmoid(s)).mean()", "loss = -F.logsigmoid(s).mean()"),
        ("loss = torch.log(EPS + s.sigmoid())", "loss = F.logsigmoid(s)"),
        ("a = torch.log(1 - torch.sigmoid(s) + 1e-8)", "a = F.logsigmoid(-s)"),
        ("a = torch.log(F.softmax(x / t, dim=-1))", "a = F.log_softmax(x / t, dim=-1)"),
        ("return x.softmax(1).clamp(min=1e-7).log()", "return F.log_softmax(x, 1)"),
        ("a = torch.log(1 - x.softmax(1))", None),
        ("a = torch.log(torch.sigmoid(s) + p)", None),
        ("a = torch.log(torch.sigmoid(s) + 0.5)", None),
        ("a = torch.log(p)", None),
        (None, None),
    ],
)
def test_a_line_without_the_detour_through_a_probability(source, form):
    assert log_space_form(source) == form
