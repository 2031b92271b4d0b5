"""Data is looked at in a stream: exact figures, bounded memory, files that are never run."""

import math
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stayfinite.checkpoint import measure
from stayfinite.errors import UsageError
from stayfinite.preflight.data import source as data_source
from stayfinite.preflight.data.file import scan_file
from stayfinite.preflight.data.group import check_file
from stayfinite.preflight.data.source import scan_batches, scan_loader
from stayfinite.preflight.data.stats import PartStats
from stayfinite.preflight.runner.check import check


def quiet(done, total):
    """Nobody watches."""


def anonymous_bytes():
    """Memory of this process that no file backs."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))


def peak_growth(monkeypatch, run):
    """How much anonymous memory the scan took at most, above what there was."""
    before, peak = anonymous_bytes(), [0]
    update = PartStats.update

    def watched(self, block, indices):
        update(self, block, indices)
        peak[0] = max(peak[0], anonymous_bytes())

    monkeypatch.setattr(PartStats, "update", watched)
    result = run()
    return peak[0] - before, result


@settings(max_examples=40)
@given(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0]), min_size=4, max_size=60),
    st.integers(1, 7),
)  # fmt: skip
def test_streamed_figures_are_those_of_the_whole(values, step):
    whole = torch.tensor(values, dtype=torch.float64).view(-1, 1)
    part = PartStats("x")
    for start in range(0, len(whole), step):
        block = whole[start : start + step]
        part.update(block, torch.arange(start, start + len(block)))
    good = whole[torch.isfinite(whole)]
    assert part.num_nan == int(torch.isnan(whole).sum())
    assert part.num_inf == int(torch.isinf(whole).sum())
    assert int(part.count.sum()) == good.numel()
    if good.numel():
        assert float(part.low) == float(good.min()) and float(part.high) == float(good.max())
        assert abs(float(whole[int(part.high_at)])) == part.abs_max
    bad = torch.nonzero(~torch.isfinite(whole.flatten())).flatten().tolist()
    assert [b.index for b in part.bad] == bad[:16]


def test_features_are_columns_channels_or_all():
    shapes = {(5,): 5, (7, 5): 5, (3, 9, 9): 3, (9, 9, 3): 3, (): 1, (40, 40, 40): 1}
    for shape, num_features in shapes.items():
        part = PartStats("x")
        part.update(torch.randn(4, *shape), torch.arange(4))
        assert part.num_features == num_features, shape


def test_samples_of_different_widths_share_one_feature():
    part = PartStats("x")
    part.update(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    part.update(torch.tensor([[3.0, 4.0, 8.0]]), torch.tensor([1]))
    assert part.num_features == 1
    assert part.count.tolist() == [5]
    assert part.abs_max == 8.0 and int(part.high_at) == 1


class Stream(IterableDataset):
    """Far more than fits into memory, made as it is asked for."""

    def __init__(self, num, width):
        self.num, self.width = num, width

    def __iter__(self):
        block = torch.randn(64, self.width)
        for i in range(self.num):
            yield block[i % 64] if i != 5000 else block[0] / 0


@pytest.mark.slow
def test_a_stream_larger_than_memory_takes_bounded_memory(monkeypatch):
    scan_loader(
        DataLoader(Stream(128, 16384), batch_size=64), [], -1, quiet
    )  # what torch takes once
    loader = DataLoader(Stream(6000, 16384), batch_size=64)  # 400 MB as it goes by
    growth, scan = peak_growth(monkeypatch, lambda: scan_loader(loader, [], -1, quiet))
    assert scan.num_seen == 6000
    assert growth < 120e6
    (part,) = scan.parts.values()
    assert [b.index for b in part.bad] == [5000]


@pytest.mark.slow
def test_a_file_larger_than_memory_is_sampled_in_bounded_memory(tmp_path, monkeypatch):
    """A sparse file: its size is real, its zeros take no room on the disk."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = int(1.2 * memory) // (4 * 1024)
    path = tmp_path / "huge.npy"
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 1024), }}"
    header += " " * (118 - len(header)) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        f.truncate(f.tell() + rows * 4096)
    monkeypatch.setattr("stayfinite.preflight.data.file.BUDGET_S", 0.3)
    growth, scan = peak_growth(monkeypatch, lambda: scan_file(path, None, quiet))
    assert path.stat().st_size > memory
    assert scan.num_total == rows
    assert 0 < scan.num_seen < rows
    assert growth < 200e6


def test_blocks_that_are_passed_over_are_not_read(tmp_path, monkeypatch):
    array = np.zeros((64, 1024), "f4")
    array[[3, 63], 7] = np.nan
    np.save(tmp_path / "a.npy", array)
    with open(tmp_path / "odd.npy", "wb") as f:  # at an odd address: a block can only be copied
        words = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {array.shape}, }}".ljust(118)
        f.write(b"\x93NUMPY\x01\x00" + (119).to_bytes(2, "little") + words.encode() + b"\n")
        f.write(array.tobytes())
    read = []
    original = measure._from_bytes
    monkeypatch.setattr(measure, "_from_bytes", lambda *a: read.append(1) or original(*a))
    monkeypatch.setattr("stayfinite.preflight.data.file.BLOCK_ELEMENTS", 2048)
    for name in ("a.npy", "odd.npy"):
        read.clear()
        scan = scan_file(tmp_path / name, None, quiet)
        assert (scan.num_seen, len(read)) == (64, 32)
        (part,) = scan.parts.values()
        assert [b.index for b in part.bad] == [3, 63]
        read.clear()
        monkeypatch.setattr("stayfinite.preflight.data.file.BUDGET_S", 1e-9)
        scan = scan_file(tmp_path / name, None, quiet)
        assert scan.num_seen == 2 * len(read) < 64
        monkeypatch.setattr("stayfinite.preflight.data.file.BUDGET_S", 20.0)


@pytest.mark.slow
def test_a_memory_mapped_dataset_is_not_read_into_memory(tmp_path, monkeypatch):
    array = np.lib.format.open_memmap(
        tmp_path / "a.npy", mode="w+", dtype="f4", shape=(12000, 4000)
    )
    array[9000, 7] = np.nan
    array.flush()

    class Rows(Dataset):
        def __init__(self):
            self.rows = np.load(tmp_path / "a.npy", mmap_mode="r")

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return self.rows[i]

    loader = DataLoader(Rows(), batch_size=8)
    growth, scan = peak_growth(monkeypatch, lambda: scan_loader(loader, [], -1, quiet))
    assert [(b.index, b.feature) for b in scan.parts["sample"].bad] == [(9000, 7)]
    assert growth < 120e6  # of 192


class Slow(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return {"x": torch.full((4,), float(i)), "label": i % 3}


def test_a_huge_set_is_sampled_evenly_and_says_so(monkeypatch):
    monkeypatch.setattr(data_source, "BUDGET_S", 0.3)
    model = nn.Linear(4, 3)

    def loss(m, batch):
        return F.cross_entropy(m(batch["x"] / 1e6), batch["label"])

    loader = DataLoader(Slow(), batch_size=4)
    report = check(
        (model, loss, loader, torch.optim.SGD(model.parameters(), lr=0.1)), only=["data"]
    )
    (coverage,) = [f for f in report.findings if f.check == "data/coverage"]
    assert coverage.value.endswith("of 1,000,000 samples, evenly spread")
    assert 32 <= coverage.data["seen"] < 100_000
    (span,) = [f for f in report.findings if f.check == "data/range"]
    assert "to 9.9" in span.value or "to 1e+06" in span.value or "e+05" in span.value


@pytest.mark.parametrize("is_scaled", [False, True])
def test_value_beyond_float16_fails_only_where_a_batch_with_it_does(is_scaled):
    x = torch.rand(64, 4)
    x[50, 2] = 2e5
    model = nn.Linear(4, 3)

    def loss(m, batch):
        given = torch.log1p(batch[0]) if is_scaled else batch[0]
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(m(given).float(), batch[1])

    loader = DataLoader(TensorDataset(x, torch.arange(64) % 3), batch_size=8)
    report = check(
        (model, loss, loader, torch.optim.SGD(model.parameters(), lr=0.1)), only=["data"]
    )
    (found,) = [f for f in report.findings if f.check == "data/range"]
    assert found.status == ("pass" if is_scaled else "fail")
    assert found.subject == "sample[0], feature 2, sample 50"
    assert ("a batch with it is finite" in found.value) == is_scaled


@pytest.mark.parametrize(("is_summed", "status"), [(True, "pass"), (False, "fail")])
def test_samples_with_nothing_in_them_fail_only_where_a_batch_with_one_does(is_summed, status):
    model = nn.Linear(4, 1)
    batches = [[torch.randn(n, 4) for n in numbers] for numbers in ((3, 2), (1, 0), (2, 4))]

    def loss(m, batch):
        each = [m(points).pow(2) for points in batch]
        return sum(e.sum() if is_summed else e.mean() for e in each)

    parts = (model, loss, batches, torch.optim.SGD(model.parameters(), lr=0.1))
    (found,) = [f for f in check(parts, only=["data"]).findings if f.check == "data/empty"]
    assert found.status == status and "1 of " in found.value


def test_rare_events_are_no_constant_features():
    model = nn.Linear(4, 6)
    happened = (torch.arange(6) == torch.arange(24)[:, None] % 5).float()  # the last one never
    loader = DataLoader(TensorDataset(torch.randn(24, 4), happened), batch_size=8)

    def loss(m, batch):
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1])

    parts = (model, loss, loader, torch.optim.SGD(model.parameters(), lr=0.1))
    (found,) = [f for f in check(parts, only=["data"]).findings if f.check == "data/constant"]
    assert found.status == "pass"


def test_as_many_samples_as_asked_for():
    scan = scan_loader(DataLoader(Slow(), batch_size=4), [], 100, quiet)
    assert (scan.num_seen, scan.num_total) == (100, 1_000_000)
    assert int(scan.parts["sample['x']"].high.max()) == 990_000


def test_a_one_shot_stream_is_scanned_with_the_batches_that_were_taken():
    batches = (torch.full((4, 2), float(i)) for i in range(10))
    taken = [next(batches), next(batches)]
    scan = scan_loader(batches, taken, None, quiet)
    assert scan.num_seen == 40
    assert float(scan.parts["batch"].high.max()) == 9.0
    assert not scan.by_sample


def test_rows_of_a_stream_are_numbered_in_its_order():
    batches = [{"x": torch.ones(3, 2), "y": torch.tensor([0, 1, 9])} for _ in range(4)]
    batches[2]["x"][1, 0] = math.nan
    scan = scan_batches(batches, None, quiet)
    assert scan.parts["batch['x']"].bad[0].index == 7
    assert scan.parts["batch['y']"].high_int == 9


def corrupted():
    x = torch.randn(50, 6)
    x[41, 2] = math.nan
    return x


def write_npy(path, x):
    np.save(path, x.numpy())


def write_npz(path, x):
    np.savez(path, features=x.numpy(), labels=np.arange(50) % 3)


def write_fortran(path, x):
    np.save(path, np.asfortranarray(x.numpy()))


FORMATS = {
    "a.npy": (write_npy, "array"),
    "a.npz": (write_npz, "features"),
    "a.safetensors": (lambda path, x: save_file({"emb": x}, path), "emb"),
    "a.pt": (lambda path, x: torch.save({"emb": x, "name": "t"}, path), "emb"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_bad_row_of_a_file_is_named(tmp_path, name):
    write, part = FORMATS[name]
    write(tmp_path / name, corrupted())
    found = check_file(tmp_path / name, None, quiet)
    (bad,) = [f for f in found if f.check == "data/finite"]
    assert bad.status == "fail"
    assert part in bad.subject and "feature 2, sample 41" in bad.subject
    assert found[0].value == "all 50 samples"


def test_an_array_that_lies_by_columns_is_still_looked_at(tmp_path):
    write_fortran(tmp_path / "f.npy", corrupted())
    (bad,) = [f for f in check_file(tmp_path / "f.npy", None, quiet) if f.check == "data/finite"]
    assert bad.value.startswith("1 NaN")


def test_a_pickle_is_never_run(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"x": Evil()}))
    with pytest.raises(UsageError):
        check_file(tmp_path / "evil.pt", None, quiet)
    assert not marker.exists()


def test_csv_columns_with_and_without_names(tmp_path):
    (tmp_path / "a.csv").write_text("x,who,y\n1,ann,2\n2,bob,\n3,cy,1e30\n")
    scan = scan_file(tmp_path / "a.csv", None, quiet)
    assert list(scan.parts) == ["x", "y"]
    assert scan.parts["y"].num_nan == 1
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    assert list(scan_file(tmp_path / "b.csv", None, quiet).parts) == ["column 0", "column 1"]
    (tmp_path / "c.csv").write_text("")
    with pytest.raises(UsageError, match="is empty; expected rows of numbers"):
        scan_file(tmp_path / "c.csv", None, quiet)


def test_missing_values_that_the_training_survives_are_a_warning():
    x = torch.randn(64, 4)
    x[::5, 1] = math.nan
    model = nn.Linear(4, 1)

    def loss(m, batch):
        return m(torch.nan_to_num(batch)).square().mean()

    parts = (model, loss, DataLoader(x, batch_size=16), torch.optim.SGD(model.parameters(), lr=0.1))
    report = check(parts, only=["data"])
    (found,) = [f for f in report.findings if f.check == "data/finite"]
    assert found.status == "warn"
    assert "stayed finite" in found.value


def test_sparse_columns_of_zeros_and_borders_are_no_finding():
    x = torch.randn(64, 100)
    x[:, :20] = 0
    part = PartStats("x")
    part.update(x, torch.arange(64))
    from stayfinite.preflight.data.checks import _constant

    assert part.constant_features() == list(range(20))
    assert _constant(part) == []


def test_boxes_beside_a_named_label_are_no_targets_of_a_binary_cross_entropy():
    batches = [
        {"x": torch.randn(4, 3), "label": torch.tensor([0, 1, 1, 0]), "boxes": 5 * torch.rand(4, 3)}
        for _ in range(3)
    ]

    def loss_fn(m, b):
        out = m(b["x"])
        wanted = b["label"].float()
        return F.binary_cross_entropy_with_logits(out[:, 0], wanted) + F.l1_loss(out, b["boxes"])

    model = torch.nn.Linear(3, 3)
    parts = {"model": model, "loss_fn": loss_fn, "loader": batches,
             "optimizer": torch.optim.SGD(model.parameters(), lr=0.01)}  # fmt: skip
    assert not [f for f in check(lambda: parts, only=["data"]).findings if f.is_problem]
