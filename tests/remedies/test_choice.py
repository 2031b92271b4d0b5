"""Changes for a failing operator: which fit a line, in which order, and what the text is then."""

import ast

import pytest

from stayfinite.remedies import Source, Symptom, candidates

HEAD = "import torch\nfrom torch.nn import functional as F\n\n\ndef loss(self, x, y, m, s):\n"


def changes(body, operator, dtype="float32", line=None, **facts):
    text = HEAD + "".join(f"    {row}\n" for row in body.splitlines())
    number = line or 5 + len(body.splitlines())
    found = candidates(
        Source(text, dtype=dtype, kernel=operator if facts.get("is_discarded") else ""),
        number,
        Symptom(operator=operator, dtype=dtype, **facts),
    )
    for candidate in found:
        ast.parse(candidate.text)
    return [
        "\n".join(r.strip() for r in c.text.removeprefix(HEAD).splitlines()) for c in found
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "operator", "first"),
    [
        ("return -torch.log(torch.sigmoid(s)).mean()", "log", "return -F.logsigmoid(s).mean()"),
        ("return torch.log(1e-8 + s.sigmoid())", "log", "return F.logsigmoid(s)"),
        ("return torch.log(1 - torch.sigmoid(s) + 1e-8)", "log", "return F.logsigmoid(-s)"),
        ("p = s.sigmoid()\nreturn torch.log(1 + eps - p)", "log",
         "p = s.sigmoid()\nreturn F.logsigmoid(-s)"),
        ("return torch.log(1 + eps - x)", "log",
         "return torch.log((1 + eps - x).clamp(min=torch.finfo(x.dtype).eps))"),
        ("return x.softmax(1).clamp(min=1e-7).log()", "log", "return x.log_softmax(1)"),
        (
            "p = torch.softmax(self.net(x), dim=1)\nreturn torch.log(p)",
            "log",
            "logits = self.net(x)\np = torch.softmax(logits, dim=1)\n"
            "return torch.log_softmax(logits, dim=1)",
        ),
        ("return torch.log(torch.exp(x).sum(1))", "exp", "return torch.logsumexp(x, 1)"),
        ("return torch.log(1 + torch.exp(x)) - s * x", "exp", "return F.softplus(x) - s * x"),
        ("return x * torch.tanh(torch.log1p(x.exp()))", "exp", "return x * torch.tanh(F.softplus(x))"),
        ("return torch.log(x.exp() + y.exp())", "exp", "return torch.logaddexp(x, y)"),
        ("return 1 / (1 + torch.exp(-(x + y)))", "exp", "return torch.sigmoid(x + y)"),
        ("e = torch.exp(x)\nreturn e / (1 + e)", "div", "e = torch.exp(x)\nreturn torch.sigmoid(x)"),
        ("a, b = torch.exp(x), torch.exp(-x)\nreturn (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())",
         "div", "a, b = torch.exp(x), torch.exp(-x)\nreturn torch.tanh(x)"),
        (
            "e = torch.exp(x @ y.T)\nreturn -(e.diagonal() / e.sum(dim=1)).log().mean()",
            "div",
            "logits = x @ y.T\ne = torch.exp(logits)\n"
            "return -torch.log_softmax(logits, dim=1).diagonal().mean()",
        ),
        ("return torch.log(x)", "log", "return torch.log(x.clamp(min=torch.finfo(x.dtype).eps))"),
        (
            "return ((x - y) ** 2).sum(1).sqrt()",
            "sqrt",
            "return ((x - y) ** 2).sum(1).clamp(min=torch.finfo(x.dtype).tiny).sqrt()",
        ),
        (
            "return torch.acosh(-x.sum(1))",
            "acosh",
            "argument = -x.sum(1)\n"
            "return torch.where(argument > 1, torch.acosh(torch.where(argument > 1, argument, 2)), 0)",
        ),
        ("return x ** 0.5", "pow", "return x.clamp(min=torch.finfo(x.dtype).tiny) ** 0.5"),
        (
            "return torch.hypot(x, y)",
            "hypot",
            "return torch.linalg.vector_norm(torch.stack([x, y]), dim=0)",
        ),
        (
            "return x.var(dim=(2, 3))",
            "var",
            "return x.var(dim=(2, 3), correction=min(1, x.size(2) * x.size(3) - 1))",
        ),
        (
            "scale = y.abs().max() / 127\nreturn torch.round(x / scale) * scale",
            "div",
            "scale = (y.abs().max() / 127).clamp(min=torch.finfo(y.dtype).eps)\n"
            "return torch.round(x / scale) * scale",
        ),
        (
            "return 1 / torch.max(1e-10 * torch.ones_like(x), x / y)",
            "div",
            "return 1 / torch.max(1e-10 * torch.ones_like(x), x / y.clamp(min=torch.finfo(y.dtype).eps))",
        ),
        ("return x.std(dim=0)", "std", "return x.std(dim=0, correction=min(1, x.size(0) - 1))"),
        (
            "v = torch.empty(3)\nreturn v",
            "empty",
            "v = torch.zeros(3)\nreturn v",
        ),
        ("return F.ctc_loss(x, y, m, s)", "_ctc_loss", "return F.ctc_loss(x, y, m, s, zero_infinity=True)"),
        ("return torch.exp(s)", "exp", "return (s - s.detach().amax(dim=-1, keepdim=True)).exp()"),
    ],
)  # fmt: skip
def test_the_best_change_comes_first(body, operator, first):
    line = 6 if operator == "empty" else None
    assert changes(body, operator, line=line)[0] == first


def test_a_mask_in_the_same_function_gets_a_finite_number():
    body = "x = x.masked_fill(m, float('-inf'))\nreturn x.softmax(-1)"
    first = changes(body, "_softmax", is_masked=True)[0]
    assert first.startswith("x = x.masked_fill(m, torch.finfo(x.dtype).min)")


@pytest.mark.parametrize(
    ("facts", "divisor"),
    [
        ({"is_count": True}, "m.sum().clamp(min=1)"),
        ({}, "m.sum().clamp(min=torch.finfo(m.dtype).eps)"),
        ({"can_be_negative": True}, "torch.where(divisor == 0, torch.ones_like(divisor), divisor)"),
        ({"is_plain_number": True}, "max(m.sum(), 1)"),
    ],
)
def test_a_divisor_is_kept_from_zero_as_suits_what_it_is(facts, divisor):
    assert changes("return x / m.sum()", "div", **facts)[0].endswith(f"return x / {divisor}")


def test_half_precision_is_left_where_it_rounds():
    found = changes("return x / (x.norm() + 1e-8)", "div", "float16")
    assert found[0] == "return x.float() / (x.float().norm() + 1e-8)"
    assert "return x / (x.norm() + 1e-4)" in found
    assert any(c.startswith("with torch.autocast(x.device.type, enabled=False):") for c in found)
    assert any(c.startswith("x = x.float()\n") for c in found)


def test_over_nothing_the_mean_is_a_sum():
    found = changes("return (x - y)[m].mean()", "mean", is_empty=True)
    assert found[0] == "selected = (x - y)[m]\nreturn selected.sum() / max(selected.numel(), 1)"
    found = changes(
        "return F.cross_entropy(x, y, ignore_index=0)", "nll_loss_forward", is_empty=True
    )
    assert found[0] == (
        'return F.cross_entropy(x, y, ignore_index=0, reduction="sum") / (y != 0).sum().clamp(min=1)'
    )
    assert changes("return (x - y)[m].mean()", "mean") == []


def test_of_a_lambda_only_its_own_line_is_changed():
    text = "import torch\nf = [\n    lambda x: x.log(),\n    lambda x: (x + 1).log(),\n]\n"
    found = candidates(Source(text), 3, Symptom(operator="log"))
    for limit, changed in zip(("eps", "tiny"), found, strict=True):
        lines = changed.text.splitlines()
        assert lines[2] == f"    lambda x: x.clamp(min=torch.finfo(x.dtype).{limit}).log(),"
        assert lines[3] == text.splitlines()[3]


def test_all_places_of_a_line_are_changed_together_and_then_each_by_itself():
    found = changes("return x / y + y / x", "div")
    eps = "clamp(min=torch.finfo({0}.dtype).eps)"
    x, y = f"x.{eps.format('x')}", f"y.{eps.format('y')}"
    assert found[0] == f"return x / {y} + y / {x}"
    assert set(found[1:3]) == {f"return x / {y} + y / x", f"return x / y + y / {x}"}


def test_a_divisor_with_a_name_can_get_its_floor_where_it_is_computed():
    found = changes("b = torch.abs(s - 2)\nreturn (b / s) * (x / b + 1)", "div")
    assert any(
        c.startswith("b = torch.abs(s - 2).clamp(min=torch.finfo(s.dtype).eps)") for c in found
    )


def test_the_argument_of_a_shifted_logarithm_is_kept_at_zero_or_above():
    assert "return torch.log(x.clamp(min=0) + 1)" in changes("return torch.log(x + 1)", "log")
    assert not any("clamp(min=0)" in c for c in changes("return torch.log(x + 1e-8)", "log"))


def test_a_log_variance_is_bounded_in_every_exponential_that_it_goes_into():
    body = "std = torch.exp(0.5 * s)\nkl = 1 + s - s.exp()\nreturn (x * std + kl).mean()"
    bounded = "std = torch.exp(0.5 * s.clamp(max=10))\nkl = 1 + s - s.clamp(max=10).exp()\n"
    assert any(c.startswith(bounded) for c in changes(body, "exp", line=7))


def test_a_distribution_is_repaired_in_the_function_that_makes_it():
    text = (
        "import torch\n\n\ndef made(raw):\n    return Normal(0.0, raw)\n\n\n"
        "def loss(raw, y):\n    return -made(raw).log_prob(y)\n"
    )
    asked = Symptom(operator="log", is_distribution=True)
    found = [c for c in candidates(Source(text), 9, asked) if "raw.clamp(min=1e-6)" in c.text]
    assert found and not any(
        "raw.clamp" in c.text for c in candidates(Source(text), 9, Symptom(operator="log"))
    )


@pytest.mark.parametrize(
    ("body", "operator", "line", "first"),
    [
        (
            "return torch.exp(x).masked_fill(~m, 0)",
            "exp",
            None,
            "return torch.exp(torch.where(m, x, 0)).masked_fill(~m, 0)",
        ),
        (
            "return torch.where(x == 0, torch.zeros_like(x), x.sqrt())",
            "sqrt",
            None,
            "return torch.where(x == 0, torch.zeros_like(x), torch.where(~(x == 0), x, 1).sqrt())",
        ),
        (
            "r = x / (y - 1)\nreturn torch.where(m, r, 0.0)",
            "div",
            6,
            "r = x / torch.where(m, y - 1, 1)\nreturn torch.where(m, r, 0.0)",
        ),
        (
            "return (x ** 0.5 * m).sum()",
            "pow",
            None,
            "return (torch.where(m != 0, x, 1) ** 0.5 * m).sum()",
        ),
    ],
)
def test_what_a_mask_discards_is_masked_before_the_operation(body, operator, line, first):
    assert changes(body, operator, line=line, is_discarded=True)[0] == first


def test_a_mask_that_is_made_later_cannot_stand_before_the_operation():
    body = "r = x / y\nk = y > 0\nreturn torch.where(k, r, 0.0)"
    assert "where(k, y" not in changes(body, "div", line=6, is_discarded=True)[0]


@pytest.mark.parametrize(
    ("body", "is_offered"),
    [
        ("h, _ = self.a(x, x, x, key_padding_mask=m)\nreturn h", True),
        ("h = self.a(x, x, x, attn_mask=m)[0]\nreturn h", True),
        ("h, w = self.a(x, x, x, key_padding_mask=m)\nreturn h + w", False),
        ("return self.a(x, x, x, key_padding_mask=m)", False),
        ("h, _ = self.a(x, x, x, key_padding_mask=m, need_weights=True)\nreturn h", False),
        ("h = F.scaled_dot_product_attention(x, x, x, attn_mask=m)[0]\nreturn h", False),
    ],
)
def test_attention_gives_no_weights_only_where_nobody_uses_them(body, is_offered):
    line = 6 if "\n" in body else None
    made = changes(body, "_softmax", line=line, is_masked=True)
    assert any("need_weights=False" in text for text in made) == is_offered
