"""Values that a line sets, formulas of schedules, targets, gradients and precisions: found and rewritten."""

import ast

import pytest

from stayfinite.remedies import (
    Source,
    Symptom,
    apply,
    at,
    at_most,
    candidates,
    filled,
    in_precision,
    lines_after,
    schedule_candidates,
    with_argument,
)


def rewritten(text, remedy):
    after, done = apply(text, [remedy])
    assert done
    ast.parse(after)
    return after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("opt = SGD(p, lr=0.1)", "opt = SGD(p, lr=0.01)"),
        ("opt = SGD(p, 0.1, momentum=0.9)", "opt = SGD(p, 0.01, momentum=0.9)"),
        ("opt = SGD(p)", "opt = SGD(p, lr=0.01)"),
    ],
)
def test_an_argument_is_set_however_it_is_given(before, after):
    source = Source(before)
    edit = with_argument(source, source.tree.body[0].value, "lr", 1, "0.01")
    assert before[: edit.start] + edit.text + before[edit.end :] == after


def test_an_argument_behind_stars_is_left_alone():
    source = Source("opt = SGD(*args, **kwargs)")
    assert with_argument(source, source.tree.body[0].value, "lr", 1, "0.01") is None


def test_a_schedule_gets_an_upper_limit_in_a_function_a_lambda_and_a_list():
    text = "def f(step):\n    return step / 5\n"
    assert "return min(step / 5, 2.0)" in rewritten(text, at_most(Source(text), 2, "2.0"))
    text = "sched = LambdaLR(opt, lambda step: step / 5)\n"
    assert "lambda step: min(step / 5, 2.0)" in rewritten(text, at_most(Source(text), 1, "2.0"))
    text = "def get_lr(self):\n    return [b * 2 for b in self.base]\n"
    after = rewritten(text, at_most(Source(text), 2, "0.1", is_list=True))
    assert "return [min(rate, 0.1) for rate in [b * 2 for b in self.base]]" in after


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("self.register_buffer('idf', torch.log(n / df))", "torch.log(n / df).nan_to_num(0.0, 0.0, 0.0))"),
        ("means = total / counts", "means = (total / counts).nan_to_num(0.0, 0.0, 0.0)"),
        ("self.w = nn.Parameter(total / counts)", "nn.Parameter((total / counts).nan_to_num(0.0, 0.0, 0.0))"),
        ("weight.copy_(values)", "weight.copy_(values.nan_to_num(0.0, 0.0, 0.0))"),
    ],
)  # fmt: skip
def test_first_values_are_filled_where_they_are_computed(line, change):
    text = f"import torch\n{line}\n"
    assert change in rewritten(text, filled(Source(text), 2))


def test_what_is_set_in_place_by_an_initializer_is_not_filled():
    text = "import torch\nnn.init.normal_(weight)\n"
    assert filled(Source(text), 2) is None


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("return (step - w) / (total - w)", "/ max(total - w, 1)"),
        ("return step ** -0.5", "max(step, 1) ** -0.5"),
        ("return math.log(final)", "math.log(max(final, 1e-8))"),
        ("return torch.sqrt(left)", "torch.sqrt(left.clamp(min=0.0))"),
        ("return math.exp(rise)", "math.exp(min(rise, 0.0))"),
        ("return torch.exp(weight * log_final)", "weight * log_final.clamp(min=-20.0)"),
    ],
)
def test_formulas_of_schedules_have_candidates(line, change):
    text = f"def f(step):\n    {line}\n"
    made = [c.text for c in schedule_candidates(Source(text), 2)]
    assert any(change in each for each in made), made


def test_a_hook_limits_the_gradient_behind_an_assignment_and_before_a_return():
    text = "def f(x):\n    h = torch.tanh(g(x))\n    return g(h)\n"
    symptom = Symptom(operator="mul", is_exploding=True)
    first = candidates(Source(text), 2, symptom)[0].text
    assert (
        "    if h.requires_grad:\n        h.register_hook(lambda grad: grad.clamp(-1, 1))\n"
        in first
    )
    last = candidates(Source(text), 3, symptom)[0].text
    assert "    out = g(h)\n    if out.requires_grad:\n" in last and last.endswith(
        "    return out\n"
    )


def test_smoothing_is_spread_over_open_classes_only():
    text = (
        "import torch\nimport torch.nn.functional as F\ndef f(z, y):\n"
        "    return F.cross_entropy(z, y, label_smoothing=0.1)\n"
    )
    (made,) = at(Source(text), 4, ["smooth_over_open"])
    after = rewritten(text, made)
    assert "is_open = scores > torch.finfo(scores.dtype).min / 2" in after
    assert "return (1 - 0.1) * F.cross_entropy(scores, y) - 0.1 * spread" in after


def test_smoothing_over_open_classes_is_the_same_without_a_mask():
    import torch

    text = (
        "import torch\nimport torch.nn.functional as F\ndef f(z, y):\n"
        "    return F.cross_entropy(z, y, label_smoothing=0.1)\n"
    )
    (made,) = at(Source(text), 4, ["smooth_over_open"])
    before, after = {}, {}
    exec(text, before)
    exec(rewritten(text, made), after)
    z, y = torch.randn(6, 5), torch.randint(0, 5, (6,))
    assert torch.allclose(before["f"](z, y), after["f"](z, y), atol=1e-6)


def test_targets_that_are_masked_out_are_ignored():
    import torch

    text = (
        "import torch\nimport torch.nn.functional as F\ndef f(z, y):\n"
        "    return F.cross_entropy(z, y)\n"
    )
    (made,) = at(Source(text), 4, ["ignore_masked"])
    after = {}
    exec(rewritten(text, made), after)
    z, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    z[1, 1] = -torch.inf
    kept = [0, 2, 3]
    expected = torch.nn.functional.cross_entropy(z[kept], y[kept])
    assert torch.allclose(after["f"](z, y), expected)


def test_equal_singular_values_are_spread_and_others_are_not():
    import torch

    text = "import torch\ndef f(m):\n    u, s, v = torch.linalg.svd(m)\n    return u @ v\n"
    (made,) = at(Source(text), 3, ["spread_values"])
    after = {}
    exec(rewritten(text, made), after)
    plain = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(plain)
    assert torch.equal(after["f"](plain), u @ v)
    flat = torch.zeros(1, 3, 3, requires_grad=True)
    after["f"](flat).sum().backward()
    assert torch.isfinite(flat.grad).all()


def test_one_operation_is_widened_by_its_operands():
    text = "import torch\ndef f(q, k):\n    return (q @ k.transpose(1, 2)) / 4\n"
    source = Source(text, dtype="float16", kernel="bmm")
    (made,) = at(source, 3, ["float32_operands"])
    assert "(q.float() @ k.transpose(1, 2).float()) / 4" in rewritten(text, made)


def test_every_place_that_asks_for_half_precision_is_changed():
    text = "import torch\nmodel = Net().half()\nx = x.to(torch.float16)\nh = config.half\n"
    after = rewritten(text, in_precision(Source(text), "float32"))
    assert "Net().float()" in after and "torch.float32" in after and "config.half\n" in after


def test_lines_are_put_behind_a_statement_and_never_into_a_block():
    text = "for x in y:\n    opt.load_state_dict(s)\n"
    made = lines_after(Source(text), 2, ["a = 1"], "n", "t", "w")
    assert rewritten(text, made).endswith("    opt.load_state_dict(s)\n    a = 1\n")
    assert lines_after(Source("if x: y = 1\n"), 1, ["a = 1"], "n", "t", "w") is None


@pytest.mark.parametrize(
    ("line", "operator", "change"),
    [
        ("w /= w.sum()", "div", "w /= w.sum().clamp(min="),
        ("y = x.std(dim=1)", "std", "x.var(dim=1).clamp(min=torch.finfo(x.dtype).tiny).sqrt()"),
        ("y = torch.acosh(x)", "acosh", "torch.acosh(x.clamp(min=1 + 1e-6))"),
        (
            "y = torch.xlogy(p, q)",
            "xlogy",
            "torch.xlogy(p, q.clamp(min=torch.finfo(q.dtype).tiny))",
        ),
        ("y = Beta(p, q).log_prob(x)", "xlogy", "Beta(p, q).log_prob(x.clamp(1e-6, 1 - 1e-6))"),
        ("y = Gamma(p, q).log_prob(x)", "lgamma", "Gamma(p, q).log_prob(x.clamp(min=1e-6))"),
        (
            "y = torch.logdet(x)",
            "linalg_slogdet",
            "torch.logdet(x + 1e-6 * torch.eye(x.shape[-1]).to(x))",
        ),
        ("y = torch.logdet(x)", "scalar_tensor", "y = torch.slogdet(x)[1]"),
        ("y = x.det()", "linalg_det", "(x + 1e-6 * torch.eye(x.shape[-1]).to(x)).det()"),
        ("y = Normal(mu, sigma).log_prob(x)", "div", "Normal(mu, sigma.clamp(min=1e-6))"),
        (
            "y = x.norm(p='fro')",
            "norm",
            "x.square().sum().clamp(min=torch.finfo(x.dtype).tiny).sqrt()",
        ),
    ],
)
def test_more_operators_have_a_floor(line, operator, change):
    text = f"import torch\ndef f(x, w, p, q, mu, sigma):\n    {line}\n    return y\n"
    made = [c.text for c in candidates(Source(text), 3, Symptom(operator=operator))]
    assert any(change in each for each in made), made
