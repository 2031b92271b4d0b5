"""Large tensors of ordinary values are passed at the speed of a sum; nothing that a closer look shows is lost."""

import pytest
import torch

from stayfinite.checkpoint import parallel as parallel_module
from stayfinite.checkpoint import pool as pool_module
from stayfinite.checkpoint import scan, scan_file
from stayfinite.checkpoint.ordinary import is_all_ordinary, range_of_non_negative

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MANY = 1 << 20


def weights(dtype=torch.float32, count=MANY):
    torch.manual_seed(0)
    return (torch.randn(count) * 0.02).to(dtype)


def report_of(tmp_path, **tensors):
    tensors = {k.replace("__", "."): v for k, v in tensors.items()}
    torch.save(tensors, tmp_path / "model.pt")
    return scan_file(tmp_path / "model.pt")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("at", [0, 1, MANY // 2 + 1, MANY - 1])
def test_one_bad_value_anywhere_is_found_with_its_index(tmp_path, dtype, value, at):
    tensor = weights(dtype)
    tensor[at] = value
    report = report_of(tmp_path, fc__weight=tensor.view(1024, -1))
    (found,) = report.findings
    assert found.code == "nonfinite_tensor"
    assert found.stats.first_bad == (at // 1024, at % 1024)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_a_healthy_tensor_has_a_range_only_where_it_is_asked_for(tmp_path, dtype):
    tensor = weights(dtype).view(1024, -1)
    torch.save({"fc.weight": tensor}, tmp_path / "model.pt")
    (plain,) = scan_file(tmp_path / "model.pt").tensors
    (asked,) = scan_file(tmp_path / "model.pt", ranges=True).tensors
    assert plain.stats.is_finite and plain.stats.min is plain.stats.max is None
    assert (asked.stats.min, asked.stats.max) == (float(tensor.min()), float(tensor.max()))
    (full,) = scan(tmp_path, full=True).files[0].tensors
    assert full.stats.mean == pytest.approx(float(tensor.double().mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (torch.zeros(1024, 1024), "all_zero"),
        (torch.full((1024, 1024), 0.5), "constant"),
        (weights().index_fill(0, torch.tensor([77]), 2e6).view(1024, -1), "absurd_magnitude"),
        (weights().index_fill(0, torch.tensor([77]), 3e38).view(1024, -1), "near_limit"),
        ((weights() * 1e-37).view(1024, -1), "subnormal_flood"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_suspicious_is_seen_in_large_tensors_too(tmp_path, tensor, code):
    report = report_of(tmp_path, fc__weight=tensor)
    assert [f.code for f in report.findings] == [code]


@pytest.mark.parametrize(("value", "codes"), [(-1e-9, ["negative_second_moment"]), (0.0, [])])
def test_a_negative_second_moment_is_seen_among_ordinary_ones(tmp_path, value, codes):
    squares = weights().square()
    squares[12345] = value
    state = {"optimizer": {"state": {0: {"exp_avg_sq": squares}}, "param_groups": []}}
    torch.save(state, tmp_path / "model.pt")
    report = scan_file(tmp_path / "model.pt")
    assert [f.code for f in report.findings] == codes
    assert report.tensors[0].stats.min == pytest.approx(value)


def test_a_tensor_in_pieces_of_which_one_is_unusual_has_its_whole_range(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_module, "_BATCH_BYTES", 2 << 20)
    monkeypatch.setattr(parallel_module, "_INLINE_BELOW", 1 << 20)
    tensor = weights(count=3 * MANY)
    tensor[2 * MANY] = -5e6
    report = report_of(tmp_path, fc__weight=tensor.view(1024, -1))
    (found,) = report.findings
    assert found.code == "absurd_magnitude"
    assert (found.stats.min, found.stats.max) == (-5e6, float(tensor.max()))


def test_large_ordinary_weights_are_not_taken_for_unusual_ones():
    assert is_all_ordinary(torch.randn(1 << 22), 1e-38)
    assert not is_all_ordinary(torch.randn(1 << 10) * 1e4, 1e-38)


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -0.0, -1e-45])
def test_the_bits_of_what_is_not_plainly_positive_are_not_trusted(bad):
    values = torch.rand(1000)
    assert range_of_non_negative(values) == (float(values.min()), float(values.max()))
    values[500] = bad
    assert range_of_non_negative(values) is None


def test_each_thread_of_the_pool_uses_one_core_and_the_caller_keeps_its_own_number(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(pool_module, "_pools", {})
    torch.set_num_threads(2)
    try:
        pool = pool_module.shared_pool()
        assert set(pool.map(lambda _: torch.get_num_threads(), range(4))) == {1}
        assert torch.get_num_threads() == 2
        pool.shutdown()
    finally:
        torch.set_num_threads(before)
