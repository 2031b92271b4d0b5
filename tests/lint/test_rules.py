"""Every rule: what it must flag, near misses that it must not, and the repaired form."""

import functools
import pathlib
import re

import pytest

from stayfinite import codes
from stayfinite.explain import page_of
from stayfinite.lint import Settings, check_source
from stayfinite.lint.check import ADVICE
from stayfinite.lint.rules.registry import ON_OPERATION

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CODES = [c.name for c in codes.all_codes("lint")]
EXPECT = re.compile(r"# expect: ([\w, ]+)$")


def read(code, name):
    return (FIXTURES / code / name).read_text(encoding="utf-8")


def is_only_pedantic(code):
    return any("`--pedantic` only" in section.text for section in page_of(code).sections)


def expected(text):
    return {
        (number, code)
        for number, line in enumerate(text.splitlines(), 1)
        if (found := EXPECT.search(line))
        for code in found[1].split(", ")
    }


@functools.cache
def found(text, pedantic=False):
    return {(f.line, f.code) for f in check_source(text, "x.py", Settings(pedantic=pedantic))}


@pytest.mark.parametrize("code", CODES)
def test_every_marked_line_is_flagged_and_no_other(code):
    text = read(code, "bad.py")
    assert any(c == code for _, c in expected(text))
    assert found(text, pedantic=is_only_pedantic(code)) == expected(text)


@pytest.mark.parametrize("code", CODES)
def test_a_pedantic_rule_is_silent_by_default(code):
    if is_only_pedantic(code):
        assert not {c for _, c in found(read(code, "bad.py"))} & {code}


@pytest.mark.parametrize("code", CODES)
def test_near_misses_are_silent(code):
    assert found(read(code, "ok.py"), pedantic=is_only_pedantic(code)) == set()


def test_every_code_has_advice_and_fixtures():
    assert set(ADVICE) == set(CODES) == {p.name for p in FIXTURES.iterdir()}


CALLS = (
    "(a / b).{}()", "(a / b).{}(1, 2)", "(a / b).{}(x=1)", "a.{}(*b)", "torch.{}()", "torch.{}(x=a / b)",
    "torch.{}(1, 2, 3, 4)", "F.{}()", "nn.{}()(a)",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(filter(str.isidentifier, ON_OPERATION)))
def test_any_object_may_have_a_method_of_an_operation_s_name(name):
    """With whatever arguments: `monitor.compare(a, b)`, `table.select()`."""
    calls = "\n".join(f"    y += {call.format(name)}" for call in CALLS)
    text = f"import torch\nfrom torch import nn\nimport torch.nn.functional as F\ndef f(a, b, y):\n{calls}\n"
    check_source(text, "x.py", Settings(pedantic=True))


def test_a_comment_keeps_a_line_out():
    line = "y = torch.log(torch.sigmoid(x))"
    assert found(f"import torch\n{line}\n") == {(2, "SF101")}
    assert found(f"import torch\n{line}  # stayfinite: ignore[SF101]\n") == set()
    assert found(f"import torch\n{line}  # stayfinite: ignore\n") == set()
    assert found(f"import torch\n{line}  # stayfinite: ignore[SF102]\n") == {(2, "SF101")}


def test_numpy_and_plain_python_are_not_tensors():
    text = (
        "import math, torch\n"
        "import numpy as np\n"
        "def loss(x):\n"
        "    return np.log(np.exp(x).sum()) + math.log(math.exp(x)) + np.sqrt(((x - 1) ** 2).sum())\n"
    )
    assert found(text) == set()
    assert found(text.replace("np.", "torch.")) != set()


def test_a_method_named_like_an_operation_of_the_language_is_a_method():
    text = "import torch\n\n\ndef test(model, x):\n    return metric.compare(model(x), torch.nan)\n"
    assert found(text) == set()


def test_a_text_without_torch_is_not_even_parsed():
    assert check_source("this is not Python") == []


def test_facts_go_through_calls_of_the_same_file():
    text = (
        "import torch\n"
        "def act(x):\n"
        "    return torch.softmax(x, dim=-1)\n"
        "def loss(x):\n"
        "    return torch.log(act(x)).sum()\n"
    )
    assert found(text) == {(5, "SF101")}


def test_facts_go_into_functions_that_are_called():
    text = (
        "import torch\n"
        "def nll(p):\n"
        "    return -torch.log(p).mean()\n"
        "def loss(x):\n"
        "    return nll(torch.sigmoid(x))\n"
    )
    assert found(text) == {(3, "SF101")}


def test_facts_go_through_layers_and_attributes():
    text = (
        "import torch\nfrom torch import nn\n"
        "class Critic(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())\n"
        "    def forward(self, x):\n"
        "        return self.net(x)\n"
        "def loss_fn(model, x):\n"
        "    return -torch.log(model(x)).mean()\n"
    )
    assert found(text) == {(10, "SF101")}


def test_one_safe_branch_is_enough():
    text = (
        "import torch\n"
        "def loss(x, eps):\n"
        "    p = torch.sigmoid(x)\n"
        "    if eps is not None:\n"
        "        p = p.clamp(min=1e-6)\n"
        "    return torch.log(p)\n"
    )
    assert found(text) == set()
