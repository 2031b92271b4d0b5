"""Losses of several parts, probes inside a model, limits on parameters."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stayfinite import (
    Guard,
    NonFiniteError,
    PartTally,
    UsageError,
    finite_mean,
    finite_sum,
    probe,
    watch,
)
from stayfinite.runtime.recovery.part_redo import PartRedo
from stayfinite.runtime.warn.limits import everywhere

QUICK = {"diagnose": False}
NAN = float("nan")


class Heads(nn.Module):
    """A shared trunk and three heads; the second one has a NaN gradient as well as a NaN loss."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.heads = nn.ModuleList([nn.Linear(3, 1) for _ in range(3)])

    def forward(self, x, bad):
        x = self.trunk(x)
        found = {f"head{i}": head(x).pow(2).mean() for i, head in enumerate(self.heads)}
        for name in bad:
            found[name] = torch.sqrt(found[name] * 0 - 1)
        return found


def grads(reduce, bad):
    torch.manual_seed(0)
    model = Heads()
    reduce(model(torch.randn(4, 3), bad)).backward()
    return {n: p.grad for n, p in model.named_parameters()}


def test_the_gradient_is_that_of_the_other_parts_alone():
    found = grads(finite_mean, ["head1"])
    wanted = grads(lambda parts: (parts["head0"] + parts["head2"]) / 2, [])
    for name, grad in wanted.items():
        assert grad is None or torch.equal(found[name], grad)
    assert found["heads.1.weight"] is None


def test_the_wrong_way_poisons_the_trunk():
    """`where` and `nan_to_num` give a finite loss, and 0 * NaN in the backward all the same."""

    def masked(parts):
        stacked = torch.stack(list(parts.values()))
        return torch.where(torch.isfinite(stacked), stacked, 0.0).sum() / 2

    found = grads(masked, ["head1"])
    assert torch.isnan(found["trunk.weight"]).all()


def test_the_sum_is_not_scaled_up():
    parts = {"a": torch.tensor(1.0), "b": torch.tensor(NAN), "c": torch.tensor(4.0)}
    assert finite_sum(parts) == 5.0
    assert finite_mean(parts) == 2.5


def test_weights():
    parts = [torch.tensor(1.0), torch.tensor(NAN), torch.tensor(4.0)]
    assert finite_sum(parts, weights=[1, 5, 0.5]) == 3.0
    assert finite_mean(parts, weights=[1, 5, 0.5]) == 2.0
    with pytest.raises(UsageError, match="3 parts need as many weights, got 2"):
        finite_sum(parts, weights=[1, 2])
    with pytest.raises(UsageError, match="same names; look at \\['b'\\]"):
        finite_sum({"a": torch.tensor(1.0)}, weights={"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_large_but_finite_is_finite(dtype):
    top = torch.finfo(dtype).max
    assert finite_sum([torch.tensor(top, dtype=dtype), torch.tensor(NAN, dtype=dtype)]) == top


@pytest.mark.parametrize("reduce", [finite_mean, finite_sum])
def test_when_all_are_bad_it_raises(reduce):
    with pytest.raises(
        NonFiniteError, match="every part of the loss is not finite: a is nan, b is inf"
    ):
        reduce({"a": torch.tensor(NAN), "b": torch.tensor(torch.inf)})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "`parts` is empty"),
        (torch.ones(3), "got one tensor"),
        ({"a": torch.ones(2)}, "each part must be a scalar tensor, but 'a' has shape (2,)"),
        ([1.0], "but 'part 0' has float"),
    ],
)
def test_wrong_parts_are_reported(parts, words):
    with pytest.raises(UsageError) as caught:
        finite_mean(parts)
    assert words in str(caught.value)


def test_a_guard_counts_and_names_the_parts(capsys):
    torch.manual_seed(0)
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tally = PartTally()
    with Guard(model, optimizer, settings=QUICK) as guard:
        for i in range(4):
            bad = ["head1"] if i in (1, 2) else []
            out = guard.step(
                lambda m, x, bad=bad: finite_mean(m(x, bad), tally=tally), torch.randn(4, 3)
            )
            assert out.applied
    assert guard.bad_parts == {"head1": 2} == dict(tally.bad)
    assert guard.incidents == []
    text = capsys.readouterr().err
    assert text.count("head1: not finite, left out of the loss (1 of 3 parts)") == 1


# -- probes ---------------------------------------------------------------------------------------


class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        pooled = probe("pooled", self.fc(x))
        routed = probe("routed", torch.log(pooled.abs() * x[:, :1]))
        return probe("out", routed * 2)


@pytest.mark.parametrize("form", ["step", "loader"])
def test_the_incident_names_the_first_bad_probe(form):
    model = Probed()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = [torch.ones(3, 2), torch.tensor([[-1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])]
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data) if form == "loader" else data:
            if form == "step":
                guard.step(lambda m, x: m(x).pow(2).mean(), x)
            else:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
    (incident,) = guard.incidents
    assert (
        "the first probe that is not finite is 'routed' (2 NaN, 0 Inf of 6"
        in incident.location.note
    )
    assert "'pooled' before it was finite" in incident.location.note
    assert incident.location.op == "aten.log"


def test_a_probe_does_nothing_while_all_is_well():
    seen = []

    class Spy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Spy)
    assert probe("here", x) is x
    assert seen == []


def test_probes_do_not_hinder_compile():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: probe("a", x + 1) * 2, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert len(calls) == 1


# -- limits ---------------------------------------------------------------------------------------


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(2))
        self.fc = nn.Linear(2, 1)

    def forward(self, x):
        return self.fc(x * self.alpha)


def drive(guard, model, values):
    for value in values:
        with torch.no_grad():
            model.alpha.fill_(value)
        guard.step(lambda m, x: m(x).pow(2).mean() * 0, torch.ones(2, 2))


def each_step(**options):
    model = Gated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return model, Guard(model, optimizer, settings={**QUICK, "max_batches": 1}, **options)


def test_a_limit_warns_once_for_each_time_it_is_crossed(capsys):
    model, guard = each_step()
    with guard:
        guard.watch("alpha", max_abs=1.0)
        drive(guard, model, [0.5, -1.5, 1.6, 0.5, 2.0])
    assert [(w.step, w.kind, w.name) for w in guard.warnings] == [
        (1, "limit", "alpha"),
        (4, "limit", "alpha"),
    ]
    assert (
        "alpha has reached 1.5, beyond the limit of 1 that watch('alpha') sets"
        in capsys.readouterr().err
    )


def test_a_limit_can_raise():
    model, guard = each_step()
    with guard, pytest.raises(NonFiniteError, match="step 0: alpha has reached 3"):
        guard.watch("*", max_abs=1.0, action="raise")
        drive(guard, model, [3.0])


def test_limits_for_the_whole_process():
    limit = watch("alp*", max_abs=1.0)
    try:
        model, guard = each_step()
        with guard:
            drive(guard, model, [5.0])
        assert [w.name for w in guard.warnings] == ["alpha"]
    finally:
        everywhere.remove(limit)


@pytest.mark.parametrize(
    ("pattern", "options", "words"),
    [
        ("*.gamma", {"max_abs": 1.0}, "watch('*.gamma') matches no parameter; there are: alpha, fc.weight, fc.bias"),
        ("*", {"max_abs": -1}, "`max_abs` must be a number above 0, got -1"),
        ("*", {"max_abs": 1, "action": "stop"}, "unknown action 'stop'; choose one of: warn, raise"),
        ("", {"max_abs": 1}, "`pattern` must be a name such as '*.alpha', got ''"),
    ],
)  # fmt: skip
def test_wrong_limits_are_reported(pattern, options, words):
    _, guard = each_step()
    with pytest.raises(UsageError) as caught:
        guard.watch(pattern, **options)
    assert words in str(caught.value)


def test_ranks_that_the_script_starts_itself_are_reported_once_that_parts_are_for_one():
    reported = []
    host = SimpleNamespace(
        ranks=SimpleNamespace(has_others=True), monitor=SimpleNamespace(warn=reported.append)
    )
    redo = PartRedo(host)
    assert not any(redo.can(SimpleNamespace(step=n), "loss") for n in range(3))
    assert [e.message for e in reported] == [
        "policy parts is for one rank: with several, a bad step is skipped on all of them"
    ]
