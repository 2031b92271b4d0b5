"""Exponentials divided by their own sums become logarithms: the same numbers, and no overflow."""

import pytest
import torch

from stayfinite.remedies import Source, Symptom, apply, candidates, find

SINKHORN = """
import torch

def project(x, tau):
    m = torch.exp(x / tau)
    for _ in range(20):
        m = m / m.sum(dim=-1, keepdim=True)
        m = m / m.sum(dim=-2, keepdim=True)
    return m
"""
ASSIGNED = """
import torch

def project(x, tau):
    q = torch.exp(x / tau).t()
    total = torch.sum(q)
    q /= total
    rows, columns = q.shape
    for _ in range(20):
        each = torch.sum(q, dim=1, keepdim=True)
        q /= each
        q /= rows
        q /= torch.sum(q, dim=0, keepdim=True)
        q /= columns
    q *= columns
    return q.t()
"""
EPSILON = """
import torch

def project(x, tau):
    p = (x / tau).exp()
    p = p / (p.sum(1, keepdim=True) + 1e-8)
    entropy = -(p * torch.log(p)).sum()
    return p, entropy
"""


def changed(text, operator="exp"):
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "exp(" in row)
    found = candidates(Source(text, kernel=operator), line, Symptom(operator=operator))
    first = next((c for c in found if "log space" in c.remedies[0].title), None)
    return None if first is None else first.text


def result(text, x, tau):
    space = {}
    exec(compile(text, "project.py", "exec"), space)
    made = space["project"](x, tau)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("text", [SINKHORN, ASSIGNED, EPSILON])
def test_the_numbers_are_the_same_and_large_ones_stay_finite(text):
    after = changed(text)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for old, new in zip(result(text, x, 0.5), result(after, x, 0.5), strict=True):
        torch.testing.assert_close(old, new)
    assert not all(v.isfinite().all() for v in result(text, 1e3 * x, 0.5))
    given = (1e3 * x).requires_grad_()
    made = result(after, given, 0.5)
    assert all(v.isfinite().all() for v in made)
    made[-1].square().sum().backward()
    assert given.grad.isfinite().all()


def test_what_is_written_is_what_a_person_would_write():
    assert changed(SINKHORN).splitlines()[4:] == [
        "    m = x / tau",
        "    for _ in range(20):",
        "        m = m - torch.logsumexp(m, dim=-1, keepdim=True)",
        "        m = m - torch.logsumexp(m, dim=-2, keepdim=True)",
        "    return m.exp()",
    ]
    assert "each = torch.logsumexp(q, dim=1, keepdim=True)\n        q = q - each\n" in changed(
        ASSIGNED
    )
    assert "entropy = -(p.exp() * p).sum()" in changed(EPSILON)


def test_a_row_that_has_become_zero_is_the_same_matter():
    assert changed(SINKHORN, "div") == changed(SINKHORN)


def test_only_what_needs_no_epsilon_is_called_equal():
    for text, is_equal in ((SINKHORN, True), (EPSILON, False)):
        source = Source(text)
        names = ("normalized_in_log_space", "normalized_in_log_space_without_epsilon")
        first = source.tree.body[1].body[0]
        found = [find(source, first, name) for name in names]
        assert [r is not None for r in found] == [is_equal, not is_equal]
        made = next(r for r in found if r is not None)
        assert made.is_equivalent is is_equal
        assert apply(text, [made])[0] == changed(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return m", "    m.clamp_(min=1e-6)\n    return m"),
        ("    return m", "    m[0] = 0\n    return m"),
        ("    return m", "    m = m + 1\n    return m"),
        ("    return m", "    torch.distributed.all_reduce(m)\n    return m"),
        ("    return m", "    return (lambda m: m + 1)(m)"),
        ("    return m", "    print(f'{m}')\n    return m"),
        ("m / m.sum(dim=-1, keepdim=True)", "m / (m ** 2).sum(dim=-1, keepdim=True)"),
        ("m / m.sum(dim=-1, keepdim=True)", "m / m.sum(dim=-1, keepdim=True, dtype=torch.float64)"),
        ("    m = torch.exp(x / tau)", "    m = x\n    if tau:\n        m = torch.exp(x / tau)"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_among_logarithms_is_left_alone(old, new):
    assert old in SINKHORN
    assert changed(SINKHORN.replace(old, new)) is None


def test_a_sum_that_somebody_else_reads_is_left_alone():
    assert changed(ASSIGNED.replace("    q *= columns", "    print(total)")) is None
