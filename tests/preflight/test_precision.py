"""The precision group: planted defects, the judges, and no alarm about what is not used."""

import pytest
import torch
from tests.preflight.planted_probes import assert_found, of_group
from torch import nn

from stayfinite.preflight.precision.group import _no_dropout, used_dtype
from stayfinite.preflight.precision.judges import (
    bits_left,
    judge_agreement,
    judge_headroom,
    judge_scaler,
    judge_underflow,
    judge_weights,
    recommended_scale,
    relative_error,
)
from stayfinite.preflight.probes import LayerSeen, Seen, Subject


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("precision"))
def test_planted_defect_is_named(defect):
    assert_found(defect)


def layer(name, **more):
    return LayerSeen(name, "Linear", num_calls=1, **more)


def test_headroom_counts_the_peak_inside_a_layer():
    assert bits_left(layer("a", abs_max=1.0, peak=16376.0)) == pytest.approx(2.0)
    near = [layer("a", abs_max=1.0), layer("b", abs_max=5e4)]
    assert [(f.status, f.subject) for f in judge_headroom(near, is_used=True)] == [("warn", "b")]
    (found,) = judge_headroom(near, is_used=False)
    assert found.status == "pass" and "it would need float32 for b" in found.value
    over = [layer("a", abs_max=1.0, peak=1e6, peak_op="aten.mm")]
    (found,) = judge_headroom(over, is_used=True)
    assert found.status == "fail" and "aten.mm" in found.value


def test_underflow_matters_only_in_use():
    low = [layer("a", underflow_fp16=0.9), layer("b")]
    assert [(f.status, f.subject) for f in judge_underflow(low, is_used=True)] == [("warn", "a")]
    assert [f.status for f in judge_underflow(low, is_used=False)] == ["pass"]


@pytest.mark.parametrize(
    ("largest", "scale"), [(1e-6, 65536.0), (1.0, 8192.0), (1e3, 8.0), (1e9, 1.0), (0.0, 65536.0)]
)
def test_recommended_scale_leaves_room(largest, scale):
    assert recommended_scale([layer("a", grad_abs_max=largest)]) == scale
    assert scale in (1.0, 65536.0) or scale * largest * 4 < 65504


def test_scaler_is_missed_only_where_gradients_vanish():
    full = Seen("x", layers=[layer("a", grad_underflow_fp16=0.3, grad_abs_max=1e-4)])
    (found,) = judge_scaler(Subject(models={}), full, 65536.0, is_used=True)
    assert (found.status, found.subject) == ("warn", "a")
    scaler = torch.amp.GradScaler("cpu")
    (found,) = judge_scaler(Subject(models={}, scalers=[scaler]), full, 65536.0, is_used=True)
    assert found.status == "pass"
    fine = Seen("x", layers=[layer("a", grad_abs_max=1.0)])
    (found,) = judge_scaler(Subject(models={}), fine, 8192.0, is_used=True)
    assert found.status == "pass" and "init_scale=8192" in found.value


def test_agreement_leaves_random_layers_out():
    ones = torch.ones(8)
    full = Seen("x", loss=1.0, layers=[layer("a", sample=ones), layer("b", sample=ones)])
    half = Seen("x", loss=1.0, layers=[layer("a", sample=ones), layer("b", sample=-ones)])
    (found,) = judge_agreement("precision/bf16", "bfloat16", full, half, {"b"}, is_used=True)
    assert found.status == "pass"
    (found,) = judge_agreement("precision/bf16", "bfloat16", full, half, set(), is_used=True)
    assert (found.status, found.subject) == ("warn", "b")
    (found,) = judge_agreement("precision/bf16", "bfloat16", full, half, set(), is_used=False)
    assert found.status == "pass" and "best kept in float32: b" in found.value


def test_relative_error():
    assert relative_error(torch.ones(4), torch.ones(4) * 1.5) == pytest.approx(0.5)
    assert relative_error(torch.zeros(4), torch.ones(4)) is None
    assert relative_error(torch.ones(4), torch.ones(3)) is None
    assert relative_error(None, torch.ones(3)) is None


def test_used_dtype_is_autocast_or_that_of_most_weights():
    model = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8))
    assert used_dtype(Subject(models={"": model})) == "bfloat16"
    assert used_dtype(Subject(models={"": nn.Linear(2, 2)})) is None
    assert used_dtype(Subject(models={"": nn.Linear(2, 2)}, autocast_dtype="float16")) == "float16"
    assert [f.status for f in judge_weights(Subject(models={"": nn.Linear(2, 2)}))] == ["pass"]


def test_dropout_is_off_only_meanwhile():
    model = nn.Sequential(nn.Dropout(0.3), nn.LSTM(2, 2, num_layers=2, dropout=0.2))
    with _no_dropout(Subject(models={"": model})):
        assert (model[0].p, model[1].dropout) == (0.0, 0.0)
    assert (model[0].p, model[1].dropout) == (0.3, 0.2)
