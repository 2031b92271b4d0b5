"""The check of the cases is itself checked: a wrong truth, a twin that is not fixed, a bad form."""

import dataclasses
import pathlib

import pytest
import torch
from torch import nn

from clinic import form, trace, verify

CASES = {e.name: e for e in form.all_cases()}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("vae_logvar_exp", "step", 3),
        ("vae_logvar_exp", "phase", "forward"),
        ("vae_logvar_exp", "op", "aten.log"),
        ("gem_pool_negative", "module", "trunk"),
        ("siamese_duplicate_pair", "line", 1),
        ("siamese_duplicate_pair", "op", "PowBackward0"),
    ],
)
def test_a_wrong_truth_is_noticed(name, field, value):
    entry = CASES[name]
    wrong = dataclasses.replace(entry.truth, **{field: value})
    found = verify.problems(dataclasses.replace(entry, truth=wrong))
    assert len(found) == 1 and found[0].startswith(f"{field}: ")


def test_a_twin_that_is_not_fixed_is_noticed():
    entry = CASES["vae_logvar_exp"]
    found = verify.problems(dataclasses.replace(entry, build_fixed=entry.build))
    assert found == ["fixed twin: loss and 32 more not finite at step 8"]


def test_a_case_that_is_not_broken_is_noticed():
    entry = CASES["vae_logvar_exp"]
    found = verify.problems(dataclasses.replace(entry, build=entry.build_fixed))
    assert found == ["the broken training stays finite"]


def births(compute):
    model = nn.Linear(1, 1)
    case = form.Case(model, torch.optim.SGD(model.parameters()), [], lambda m, b: m(b).sum())
    entry = form.Entry(name="x", path=pathlib.Path(__file__), doc="", build=lambda: case)
    traced = trace.Trace(entry, case, set())
    with trace.watching(traced, model):
        out = compute()
    return [b.op for b in sorted(traced.of(out).births, key=lambda b: b.order)]


def test_a_sentinel_is_no_birth_but_what_makes_nan_of_it_is():
    row = torch.zeros(1, 3)
    all_masked = torch.ones(1, 3, dtype=torch.bool)
    assert births(lambda: row.masked_fill(all_masked, -torch.inf)) == []
    assert births(lambda: row.masked_fill(all_masked, -torch.inf).softmax(-1)) == ["aten._softmax"]


def test_a_sentinel_that_is_summed_is_born_in_the_sum():
    half = torch.tensor([[True, False]])
    assert births(lambda: torch.zeros(1, 2).masked_fill(half, -torch.inf).neg().sum()) == [
        "aten.sum"
    ]


def test_nan_of_an_inf_is_born_where_the_inf_was():
    x = torch.tensor([100.0])
    assert births(lambda: x.exp() - x.mul(2).exp()) == ["aten.exp", "aten.exp"]


def test_a_value_that_is_dropped_is_no_birth_of_the_result():
    x = torch.tensor([0.0])
    assert births(lambda: torch.where(x > 0, x.log(), 1 / x)) == ["aten.reciprocal"]


def test_bad_truths_are_rejected():
    good = {"step": 0, "phase": "loss", "op": None, "module": None, "line": None}
    with pytest.raises(ValueError, match="`phase` is 'train'; valid are: data, forward, loss"):
        form.Truth(**{**good, "phase": "train"}, cause="log_of_zero", split="dev")
    with pytest.raises(ValueError, match="`cause` is 'x'; valid are: low_precision_overflow"):
        form.Truth(**good, cause="x", split="dev")
    with pytest.raises(ValueError, match="`split` is 'test'; valid are: dev, held_out"):
        form.Truth(**good, cause="log_of_zero", split="test")


def test_only_one_line_may_be_marked(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(f"x = 1\ny = 2  {form.MARKER}\n")
    assert form.resolve_line(path) == 2
    path.write_text(f"x = 1  {form.MARKER}\ny = 2  {form.MARKER}\n")
    with pytest.raises(ValueError, match=r"2 lines are marked .*: \[1, 2\]; mark one"):
        form.resolve_line(path)
