"""One NaN or Inf at a random place, in every format and dtype: found each time, located exactly."""

import math
import random

import pytest
import torch
from tests.checkpoint.samples import COMBINATIONS, KEEPS_STRIDES, WRITERS, poison, random_tensor

from stayfinite.checkpoint import scan, scan_file, scan_object

LAYOUTS = ("dense", "transposed", "sliced", "stepped", "channels_last", "offset")


def arrange(layout, tensor):
    """The same kind of values behind other strides."""
    if layout == "transposed":
        return tensor.transpose(0, -1)
    if layout == "sliced":
        return tensor[1:, ..., 1:]
    if layout == "stepped":
        return tensor[::2, ..., ::2]
    if layout == "offset":
        return tensor.reshape(-1)[3:]
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def bad_value(dtype, rnd):
    if "e4m3" in dtype or "fnuz" in dtype:
        return math.nan
    return rnd.choice([math.nan, math.inf, -math.inf])


def findings(target):
    report = scan([target], timeline=False)
    return report, [f for file in report.files for f in file.findings]


@pytest.mark.parametrize(("kind", "dtype"), COMBINATIONS)
@pytest.mark.filterwarnings("ignore:ComplexHalf")  # torch's own, from making the tensor
def test_one_bad_value_is_found_and_located(tmp_path, kind, dtype):
    writer, _ = WRITERS[kind]
    rnd = random.Random(f"{kind}{dtype}")
    rng = torch.Generator().manual_seed(rnd.randrange(1 << 30))
    for trial, layout in enumerate(LAYOUTS if kind in KEEPS_STRIDES else ("dense", "dense")):
        tensors = {f"w{i}": random_tensor(dtype, (4, 3, 5, 6), rng) for i in range(3)}
        victim = "w0" if kind == "npy" else rnd.choice(list(tensors))
        tensors[victim] = arrange(layout, tensors[victim])
        index = tuple(rnd.randrange(n) for n in tensors[victim].shape)
        value = bad_value(dtype, rnd)
        folder = tmp_path / str(trial)
        folder.mkdir()
        (folder / "healthy").mkdir()
        report, found = findings(writer(folder / "healthy", tensors))
        assert report.verdict == "healthy" and found == [], (layout, found)
        poison(tensors[victim], index, value)
        report, found = findings(writer(folder, tensors))
        assert report.verdict == "corrupt" and report.exit_code() == 1
        (only,) = found
        assert only.code == "nonfinite_tensor"
        assert only.tensor.endswith("array" if kind == "npy" else victim)
        assert only.stats.first_bad == index, (layout, only.stats)
        assert only.stats.num_nonfinite == 1
        counts = (only.stats.num_nan, only.stats.num_posinf, only.stats.num_neginf)
        kinds = (math.isnan(value), value == math.inf, value == -math.inf)
        assert counts == tuple(int(k) for k in kinds)
        assert only.stats.min is not None and 0.4 < only.stats.min <= only.stats.max < 2.6


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "float8_e5m2", "complex64"]
)
@pytest.mark.parametrize("together", [False, True])
def test_every_position_of_a_tensor_larger_than_a_block(tmp_path, dtype, together, monkeypatch):
    """Small blocks, so that first, last and edge elements of blocks are all hit."""
    from stayfinite.checkpoint import measure, small
    from stayfinite.checkpoint.files import MappedFile

    monkeypatch.setattr(MappedFile, "block_bytes", 256)
    monkeypatch.setattr(small, "_MAX_BYTES", 1 << 16 if together else 0)
    monkeypatch.setattr(measure, "DETAIL_ELEMENTS", 37)
    clean = random_tensor(dtype, (7, 11), torch.Generator().manual_seed(1))
    for layout in ("dense", "transposed"):
        for position in range(clean.numel()):
            tensor = arrange(layout, clean.clone())
            index = (position // tensor.shape[1], position % tensor.shape[1])
            poison(tensor, index, math.nan)
            torch.save({"w": tensor}, tmp_path / "t.pt")
            (only,) = scan_file(tmp_path / "t.pt").findings
            assert only.stats.first_bad == index


def test_the_first_bad_index_is_first_by_index_not_by_memory(tmp_path):
    tensor = torch.ones(5, 4).t()
    tensor[0, 4] = math.nan
    tensor[3, 0] = math.nan
    torch.save({"w": tensor}, tmp_path / "t.pt")
    (only,) = scan_file(tmp_path / "t.pt").findings
    assert only.stats.first_bad == (0, 4) and only.stats.num_nan == 2


def test_shared_storages_are_read_once(tmp_path):
    base = torch.rand(1000, 100)
    state = {
        "a": base,
        "b": base,
        "tied": base[:500],
        "rest": base[500:],
        "wide": base[:1].expand(10**6, 100),
    }
    torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert report.verdict == "healthy" and report.scanned_bytes <= 2 * base.nbytes + 400
    by_name = {t.name: t for t in report.tensors}
    assert by_name["a"].aliases == ("b",)
    assert by_name["wide"].stats.shape == (10**6, 100)


def test_views_that_overlap_do_not_multiply_the_work(tmp_path):
    base = torch.ones(100_000)
    torch.save({f"v{i}": base[i : i + 90_000] for i in range(500)}, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert report.verdict == "healthy" and len(report.tensors) >= 500
    assert report.scanned_bytes < 20 * base.nbytes


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_and_their_scales(tmp_path):
    q = torch.quantize_per_tensor(torch.rand(4, 4), 0.1, 3, torch.quint8)
    per_channel = torch.quantize_per_channel(
        torch.rand(4, 4),
        torch.full((4,), 0.1, dtype=torch.float64),
        torch.zeros(4, dtype=torch.int64),
        0,
        torch.qint8,
    )
    torch.save({"q": q, "c": per_channel}, tmp_path / "q.pt")
    assert scan_file(tmp_path / "q.pt").verdict == "healthy"
    scales = torch.full((4,), 0.1, dtype=torch.float64)
    scales[2] = math.nan
    bad = torch.quantize_per_channel(
        torch.rand(4, 4), scales, torch.zeros(4, dtype=torch.int64), 0, torch.qint8
    )
    torch.save({"c": bad}, tmp_path / "q.pt")
    (only,) = scan_file(tmp_path / "q.pt").findings
    assert only.tensor == "c.scale" and only.stats.first_bad == (2,)


def test_sparse_nested_empty_scalar_integer_and_meta_tensors(tmp_path):
    sparse = torch.eye(4).to_sparse()
    state = {
        "coo": sparse,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "ints": torch.arange(5),
        "bools": torch.tensor([True, False]),
        "meta": torch.empty(3, device="meta"),
        "u16": torch.tensor([0, 1, 60_000], dtype=torch.uint16),
        "u64": torch.tensor([0, 1, 2**63], dtype=torch.uint64),
        "param": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert report.verdict == "healthy" and report.findings == ()
    assert {t.name for t in report.tensors} >= set(state) - {"coo"} | {"coo.values", "coo.indices"}
    state["coo"] = torch.sparse_coo_tensor([[0], [1]], [math.inf], (2, 2), check_invariants=False)
    torch.save(state, tmp_path / "t.pt")
    (only,) = scan_file(tmp_path / "t.pt").findings
    assert only.tensor == "coo.values"


def test_big_endian_files(tmp_path):
    import numpy as np

    values = np.arange(12, dtype=">f4").reshape(3, 4)
    values[1, 2] = np.nan
    np.save(tmp_path / "b.npy", values)
    (only,) = scan_file(tmp_path / "b.npy").findings
    assert only.stats.first_bad == (1, 2) and only.stats.max == 11.0
    np.save(tmp_path / "f.npy", np.asfortranarray(values))
    (only,) = scan_file(tmp_path / "f.npy").findings
    assert only.stats.first_bad == (1, 2)


def test_a_state_in_memory_gives_the_same_findings(tmp_path):
    weight = torch.rand(3, 4)
    weight[1, 1] = math.nan
    state = {"model": {"w": weight}, "optimizer": {"param_groups": [{"lr": math.nan}]}}
    torch.save(state, tmp_path / "t.pt")
    stored, live = scan_file(tmp_path / "t.pt"), scan_object(state)
    assert [(f.code, f.tensor, f.role) for f in stored.findings] == [
        (f.code, f.tensor, f.role) for f in live.findings
    ]
    ours, theirs = stored.findings[0].stats, live.findings[0].stats
    for name in ("num_nan", "first_bad", "min", "max", "mean", "num_zero", "headroom_bits"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_unaligned_bytes(tmp_path):
    """A safetensors header need not end on a multiple of the element size."""
    import json

    header = json.dumps({"w": {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]}}).encode()
    header += b" " * (3 - len(header) % 8 % 3)
    while (8 + len(header)) % 8 == 0:
        header += b" "
    body = torch.tensor([1.0, math.nan, 2.0], dtype=torch.float64).numpy().tobytes()
    (tmp_path / "u.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    (only,) = scan_file(tmp_path / "u.safetensors").findings
    assert only.stats.first_bad == (1,) and only.stats.max == 2.0


def test_large_files_are_measured_side_by_side(tmp_path):
    """Pieces of large tensors, bad ones and 8-bit ones among them, give what one pass gives."""
    state = {
        "large": torch.rand(9_000_000),
        "bad": torch.rand(3000, 3000),
        "octets": torch.rand(1000, 1000).to(torch.float8_e5m2),
        "empty": torch.empty(0),
        "wide": torch.rand(600, 600).t()[::2],
    }
    state["large"][8_999_999] = 7.0
    state["bad"][2999, 2998] = math.nan
    state["octets"].view(torch.uint8)[3, 4] = 0x7C
    threads = torch.get_num_threads()
    torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt", ranges=True)
    assert torch.get_num_threads() == threads
    by_name = {t.name: t.stats for t in report.tensors}
    assert list(by_name) == list(state)
    assert by_name["large"].max == 7.0 and by_name["large"].is_finite
    assert by_name["bad"].first_bad == (2999, 2998) and by_name["bad"].num_nonfinite == 1
    assert by_name["octets"].first_bad == (3, 4) and by_name["octets"].num_posinf == 1
    assert by_name["wide"].max == float(state["wide"].max())
    assert [f.tensor for f in report.findings] == ["bad", "octets"]
    assert report.scanned_bytes == sum(t.nbytes for t in state.values())
