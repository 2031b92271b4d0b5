"""Time, memory, depth, entries and output have bounds, whatever a file or a folder says."""

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
import typer
from safetensors.torch import save_file
from tests.launch import forked
from typer.testing import CliRunner

import stayfinite.checkpoint.timeline as timeline_module
from stayfinite.checkpoint import Limits, diff, plan_quarantine, scan, scan_file
from stayfinite.checkpoint.limits import FileFault, LimitError
from stayfinite.checkpoint.text import describe_scan
from stayfinite.cli import scan as scan_commands


def codes(report):
    return {f.code for f in report.findings}


def memo_bomb(width, depth):
    """Lists that hold one another `width` times over: as a tree it would never end."""
    parts = [b"q" + bytes([i]) + b"(" + (b"h" + bytes([i])) * width + b"l" for i in range(depth)]
    return b"\x80\x02]" + b"".join(parts) + b"."


def test_shared_containers_are_walked_once(tmp_path):
    (tmp_path / "bomb.pkl").write_bytes(memo_bomb(100, 200))
    report = scan_file(tmp_path / "bomb.pkl", limits=Limits(max_seconds=5))
    assert "stopped after" not in str(report.findings)


def test_time_is_bounded_and_reported(tmp_path):
    torch.save({str(i): torch.ones(1) for i in range(3000)}, tmp_path / "many.pt")
    report = scan_file(tmp_path / "many.pt", limits=Limits(max_seconds=1e-9))
    assert report.verdict == "unreadable" and codes(report) == {"limit_exceeded"}
    assert report.findings[0].message.startswith("stopped after 1e-09 s in its")


@pytest.mark.parametrize(
    "body",
    [
        b"]" * 600_000 + b"0" * 599_999,
        b"](" + b"}" * 600_000 + b"e",
        b"(" * 600_000,
        b"](" + b"G" + b"\x00" * 8 + (b"G" + b"\x01" * 8) * 600_000 + b"e",
        b"](" + b"X\x01\x00\x00\x00a" * 400_000 + b"e",
    ],
    ids=["lists", "dicts", "marks", "floats", "texts"],
)
def test_memory_is_bounded_and_reported(tmp_path, body):
    (tmp_path / "fat.pkl").write_bytes(b"\x80\x02" + body + b".")
    report = scan_file(tmp_path / "fat.pkl", limits=Limits(max_memory=10 << 20))
    assert codes(report) == {"limit_exceeded"}


def test_a_list_copied_again_and_again_is_counted(tmp_path):
    """`list(x)` of one long list, a thousand times: three bytes of pickle for a megabyte each."""
    body = b"](" + b"K\x01" * 100_000 + b"eq\x00"
    again = b"(" + b"c__builtin__\nlist\nh\x00\x85R" * 1000 + b"t."
    (tmp_path / "copies.pkl").write_bytes(b"\x80\x02" + body + again)
    report = scan_file(tmp_path / "copies.pkl", limits=Limits(max_memory=100 << 20))
    assert codes(report) == {"limit_exceeded"}


def test_files_inside_a_pickle_share_its_time(tmp_path):
    inner = pickle.dumps(torch.ones(2))
    many = {"a": [pickle.loads(inner) for _ in range(1500)]}
    (tmp_path / "nested.pkl").write_bytes(pickle.dumps(many))
    report = scan_file(tmp_path / "nested.pkl", limits=Limits(max_seconds=1e-6))
    assert "limit_exceeded" in codes(report)


@pytest.mark.slow
def test_seventy_thousand_tensors_as_torch_writes_them(tmp_path):
    """More than 65,535 entries make a zip64 archive."""
    values = {f"layer.{i}.weight": torch.full((2,), 1.0 + i) for i in range(70_000)}
    values["layer.69999.weight"][1] = float("nan")
    torch.save(values, tmp_path / "many.pt")
    report = scan_file(tmp_path / "many.pt", limits=Limits(max_seconds=600))
    (only,) = report.findings
    assert (only.tensor, only.stats.first_bad) == ("layer.69999.weight", (1,))
    assert len(report.tensors) == 70_000


def write_sparse_zip64(path, gigabytes, bad=None):
    """A torch archive with one storage of zeros and ones that nobody has to write."""
    import zipfile

    count = int(gigabytes * (1 << 30)) // 4
    small = {"w": torch.zeros(4)}
    torch.save(small, path)
    with zipfile.ZipFile(path) as archive:
        parts = {n: archive.read(n) for n in archive.namelist()}
    prefix = next(iter(parts)).split("/")[0]
    shape = b"J" + (count).to_bytes(4, "little", signed=True)
    data = parts[f"{prefix}/data.pkl"].replace(b"K\x04", shape)
    offset = write_stored(path, [(f"{prefix}/data.pkl", data), (f"{prefix}/data/0", count * 4)])
    if bad is not None:
        with open(path, "r+b") as f:
            f.seek(offset + bad * 4)
            f.write(torch.tensor(float("inf")).numpy().tobytes())


def write_stored(path, entries):
    """A zip64 archive by hand: a size instead of bytes leaves a hole. Returns the last start."""
    import struct

    central, start = b"", 0
    with open(path, "wb") as f:
        for name, data in entries:
            raw = name.encode()
            size = data if isinstance(data, int) else len(data)
            header = f.tell()
            extra = struct.pack("<HHQQ", 1, 16, size, size)
            f.write(b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 0, 0, 0xFFFFFFFF,
                                                 0xFFFFFFFF, len(raw), len(extra)))  # fmt: skip
            f.write(raw + extra)
            start = f.tell()
            f.write(data) if not isinstance(data, int) else f.seek(size, 1)
            extra = struct.pack("<HHQQQ", 1, 24, size, size, header)
            central += b"PK\x01\x02" + struct.pack(
                "<HHHHHHIIIHHHHHII", 45, 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(raw),
                len(extra), 0, 0, 0, 0, 0xFFFFFFFF)  # fmt: skip
            central += raw + extra
        at = f.tell()
        f.write(central)
        end = f.tell()
        count = len(entries)
        f.write(
            b"PK\x06\x06"
            + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(central), at)
        )
        f.write(b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1))
        f.write(
            b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        )
    return start


def test_a_small_zip64_archive(tmp_path):
    write_sparse_zip64(tmp_path / "w.pt", 0.001, bad=7)
    (only,) = scan_file(tmp_path / "w.pt").findings
    assert (only.code, only.stats.first_bad) == ("nonfinite_tensor", (7,))


@pytest.mark.slow
def test_more_than_four_gigabytes(tmp_path):
    """Beyond what 32 bits can address."""
    path = tmp_path / "large.pt"
    num_bytes = 9 << 29
    at = num_bytes // 4 - 3
    write_sparse_zip64(path, 4.5, bad=at)
    report = scan_file(path)
    (only,) = report.findings
    assert (only.code, only.stats.first_bad) == ("nonfinite_tensor", (at,))
    assert report.scanned_bytes == num_bytes


@pytest.mark.slow
def test_a_hundred_thousand_tensors(tmp_path):
    path = tmp_path / "many.safetensors"
    values = {f"layer.{i}.weight": torch.tensor([1.0 + i, 2.0, 3.0, 4.0]) for i in range(100_000)}
    values["layer.87654.weight"][2] = float("nan")
    save_file(values, path)
    (only,) = scan_file(path, limits=Limits(max_seconds=600)).findings
    assert (only.tensor, only.stats.first_bad) == ("layer.87654.weight", (2,))


def test_findings_are_listed_up_to_a_limit(tmp_path):
    bad = torch.tensor([float("nan")])
    torch.save({f"w{i}": bad.clone() for i in range(1500)}, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert len(report.findings) == 1000 and "500 more findings are not listed" in report.notes


def test_folders_too_deep_are_reported_and_the_rest_is_scanned(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "good.pt")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    report = scan(tmp_path)
    assert [c.verdict for c in report.checkpoints] == ["healthy"]
    assert [p.code for p in report.problems] == ["limit_exceeded"]
    assert report.exit_code() == 1 and "limit_exceeded" in "\n".join(describe_scan(report))
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_too_many_files_are_reported(tmp_path):
    for i in range(30):
        torch.save({"w": torch.ones(1)}, tmp_path / f"{i}.pt")
    report = scan(tmp_path, limits=Limits(max_entries=20))
    assert len(report.checkpoints) == 20 and report.problems[0].code == "limit_exceeded"


def test_links_that_lead_nowhere_are_findings(tmp_path):
    os.symlink("loop.pt", tmp_path / "loop.pt")
    os.symlink("nowhere", tmp_path / "gone.pt")
    os.symlink(tmp_path, tmp_path / "again")
    for name in ("loop.pt", "gone.pt"):
        report = scan(tmp_path / name)
        assert {f.code for r in report.files for f in r.findings} == {"unreadable"}
    assert scan(tmp_path).exit_code() in (0, 1)


def test_pipes_in_a_checkpoint_folder_do_not_hang(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    os.mkfifo(folder / "model.safetensors.index.json")
    os.mkfifo(folder / "trainer_state.json")
    save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    (checkpoint,) = scan(folder).checkpoints
    assert "unreadable" in {f.code for f in checkpoint.findings}


def test_an_index_with_many_missing_shards_is_one_finding(tmp_path):
    names = {f"w{i}": f"model-{i}.safetensors" for i in range(100_000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (checkpoint,) = scan(tmp_path).checkpoints
    missing = [f for f in checkpoint.findings if "needs" in f.message]
    assert len(missing) == 1 and "and 99,995 more" in missing[0].message


def test_diff_names_what_cannot_be_compared(tmp_path):
    index = {"weight_map": {"w": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    folder = tmp_path / "shards"
    folder.mkdir()
    os.rename(tmp_path / "model.safetensors.index.json", folder / "model.safetensors.index.json")
    with pytest.raises(FileFault, match=r"cannot be compared: .*gone\.safetensors"):
        diff(folder, tmp_path / "good.pt")


def test_diff_of_hostile_files_is_no_equality(tmp_path):
    for name in ("a.pkl", "b.pkl"):
        (tmp_path / name).write_bytes(b"\x80\x02cos\nsystem\nU\x04trueR.")
    with pytest.raises(FileFault, match="is hostile and cannot be compared"):
        diff(tmp_path / "a.pkl", tmp_path / "b.pkl")
    for name in ("a.pkl", "b.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps({"note": "no tensors"}))
    with pytest.raises(FileFault, match="no tensor in either"):
        diff(tmp_path / "a.pkl", tmp_path / "b.pkl")


def test_what_was_too_much_is_not_put_into_quarantine(tmp_path):
    torch.save({str(i): torch.ones(1) for i in range(3000)}, tmp_path / "many.pt")
    report = scan(tmp_path, limits=Limits(max_seconds=1e-9))
    assert report.exit_code() == 1
    assert plan_quarantine(report.checkpoints, tmp_path / "bad") == []


def test_a_meter_counts_from_the_last_part():
    limits = Limits(max_seconds=1e-12).begin()
    with pytest.raises(LimitError, match="in its pickle"):
        limits.part("its pickle")
        limits.meter.check()
    inner = limits.inner()
    inner.part("another")
    with pytest.raises(LimitError, match="in its pickle"):
        limits.meter.check()


def test_names_of_files_are_printed_without_escape_codes(tmp_path):
    escape = "\x1b[2JFORGED\x07"
    torch.save({"w": torch.ones(1)}, tmp_path / f"a{escape}.pt")
    (tmp_path / f"b{escape}\nc.pt").write_bytes(b"no checkpoint")
    for extra in (["-v", str(tmp_path)], [str(tmp_path / f"none{escape}")]):
        done = forked(["-m", "stayfinite", "scan", *extra], tmp_path)
        assert done.code in (1, 2)
        assert "\x1b" not in done.out + done.err and "\x07" not in done.out + done.err


def test_an_interrupt_keeps_what_is_known(tmp_path, monkeypatch):
    from stayfinite.checkpoint import running, scanner

    for i in range(6):
        torch.save({"w": torch.ones(2)}, tmp_path / f"step_{i}.pt")
    rounds, last = [], 1
    real = running.wait

    def wait(pending, timeout, return_when):
        rounds.append(1)
        if len(rounds) == last:
            raise KeyboardInterrupt
        return real(pending, timeout=timeout, return_when=return_when)

    monkeypatch.setattr(running, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        scan(tmp_path, jobs=1)
    rounds.clear()
    last = 3
    slow = scanner.scan_file
    seen = []

    def scan_slowly(path, **options):
        seen.append(path)
        if len(seen) > 2:
            while len(rounds) < 3:  # the interrupt comes while the third is under way
                pass
        return slow(path, **options)

    monkeypatch.setattr(scanner, "scan_file", scan_slowly)
    report = scan(tmp_path, jobs=1, keep_partial=True)
    assert 2 <= len(report.checkpoints) < 6
    assert report.num_unseen == 6 - len(report.checkpoints) and report.timelines == ()
    assert f"interrupted, {report.num_unseen} not looked at" in list(describe_scan(report))[-1]


def overlapping(path, first):
    storage = torch.arange(300_000, dtype=torch.float32)
    storage[0] = first
    torch.save({f"w{i}": storage[i:].view(1, -1) for i in range(40)}, path)


def test_overlapping_views_do_not_make_diff_or_a_timeline_read_one_storage_over_and_over(
    tmp_path, monkeypatch
):
    read = []
    real = sys.modules["stayfinite.checkpoint.compare"].change_between
    diff_module = sys.modules["stayfinite.checkpoint.diff"]
    monkeypatch.setattr(diff_module, "change_between", lambda a, b: read.append(a) or real(a, b))
    monkeypatch.setattr(
        timeline_module, "change_between", lambda a, b: read.append(a) or real(a, b)
    )
    overlapping(tmp_path / "step_1.pt", 5.0)
    overlapping(tmp_path / "step_2.pt", 6.0)
    with pytest.raises(LimitError, match="overlapping views"):
        diff(tmp_path / "step_1.pt", tmp_path / "step_2.pt")
    report = scan(tmp_path)
    assert report.verdict == "healthy" and len(report.timelines[0].entries) == 2
    assert read == []


def test_a_few_views_of_one_storage_are_compared(tmp_path):
    storage = torch.arange(300_000, dtype=torch.float32)
    for name, shift in (("a", 0.0), ("b", 1.0)):
        moved = storage + shift
        torch.save({"whole": moved, "head": moved[:1000], "tail": moved[1000:]}, tmp_path / name)
    assert {t.status for t in diff(tmp_path / "a", tmp_path / "b").tensors} == {"changed"}


def test_the_limits_of_diff_can_be_set(tmp_path):
    torch.save({str(i): torch.ones(1) for i in range(3000)}, tmp_path / "many.pt")
    app = typer.Typer()
    scan_commands.register(app)
    done = CliRunner().invoke(
        app,
        ["diff", str(tmp_path / "many.pt"), str(tmp_path / "many.pt"), "--max-seconds", "1e-9"],
    )
    assert done.exit_code == 1 and "stopped after 1e-09 s" in done.output
