"""What looks alarming and is healthy: no incident, no word, and the same result as the plain run."""

import copy
import sys

import pytest
import torch
from tests.faults.forms import QUICK, run_script
from tests.faults.healthy import (
    CASES,
    amp_initial_overflow,
    build,
    gradient_norm_overflows_over_finite_gradients,
    plain_step,
)

from stayfinite import Guard


def contents(case):
    return {k: v.clone() for k, v in case.model.state_dict().items() if v.device.type != "meta"} | {
        "scale": None if case.scaler is None else copy.deepcopy(case.scaler.state_dict())
    }


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            a, b = (t.to_dense() if t.layout != torch.strided else t for t in (value, wanted[name]))
            a, b = (t.float() if "float8" in str(t.dtype) else t for t in (a, b))
            assert torch.equal(a, b), name
        else:
            assert value == wanted[name], name


def plainly(make):
    plain = build(make)
    for batch in plain.batches:
        plain_step(plain, batch)
    return contents(plain)


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_no_word_and_the_plain_result_of_a_script(make, tmp_path, as_script, capfd):
    run, code = run_script("silent.py", [make.__name__], tmp_path / "run")
    assert (code, run.engine.incidents) == (0, [])
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "run" / "incidents").exists()
    assert_same(contents(sys.modules["__main__"].case), plainly(make))


@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", ["step", "loader"])
def test_no_word_and_the_plain_result(form, make, capfd):
    case = build(make)
    applied = []
    with Guard(case.model, case.optimizer, scaler=case.scaler, settings=QUICK) as guard:
        if form == "step":
            applied = [guard.step(case.loss_of, b).applied for b in case.batches]
        else:
            for batch in guard(case.batches):
                plain_step(case, batch)
    assert guard.incidents == []
    assert capfd.readouterr() == ("", "")
    assert_same(contents(case), plainly(make))
    if form == "step":
        assert all(applied) or case.num_skipped


def test_the_amp_case_really_overflows():
    case = build(amp_initial_overflow)
    for batch in case.batches:
        plain_step(case, batch)
    assert case.scaler.get_scale() < 2.0**24, "the scaler never had to skip"


def test_clip_norm_may_overflow_over_finite_gradients():
    """inf as total norm makes clip_grad_norm_ write zeros: not finite news, but no NaN either."""
    case = build(gradient_norm_overflows_over_finite_gradients)
    with Guard(case.model, case.optimizer, clip_norm=1.0, settings=QUICK) as guard:
        for batch in case.batches:
            guard.step(case.loss_of, batch)
    assert guard.incidents == []
    assert all(torch.isfinite(p).all() for p in case.model.parameters())
