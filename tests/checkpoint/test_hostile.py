"""A pickle is never executed: hostile files give a clear finding, in bounded time and memory."""

import argparse
import os
import pickle
import resource
import sys
import time

import pytest
import torch
from tests.checkpoint.hostile import HOSTILE, Evil, write_corpus

from stayfinite.checkpoint import scan, scan_file


@pytest.fixture(scope="module")
def hostile_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    marker = folder / "executed"
    return write_corpus(folder, str(marker)), marker


def test_the_corpus_would_really_run(tmp_path):
    """The marker proves something only if the ordinary way of loading creates it."""
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Evil(str(marker))))
    assert marker.exists()


def test_every_hostile_file_gives_its_finding_and_runs_nothing(hostile_files):
    files, marker = hostile_files
    wrong = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, case in files.items():
        begin = time.process_time()
        report = scan_file(path)
        took = time.process_time() - begin
        codes = {f.code for f in report.findings}
        if not codes.intersection(case.codes) and (case.codes or codes):
            wrong.append(f"{case.name}: expected one of {case.codes}, got {codes or 'nothing'}")
        if case.codes == HOSTILE and report.verdict != "hostile":
            wrong.append(f"{case.name}: verdict {report.verdict}")
        if took > 5:
            wrong.append(f"{case.name}: took {took:.1f} s")
        if any(not f.message.isprintable() for f in report.findings):
            wrong.append(f"{case.name}: a message with control characters")
    assert not wrong, "\n".join(wrong)
    assert not marker.exists()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 400, f"{grown:.0f} MB"
    names = {case.name for case in files.values()}
    assert len(names) == len(files) > 200


def test_a_folder_of_them_is_scanned_to_the_end(hostile_files):
    files, marker = hostile_files
    some = [path for path in files if path.stat().st_size < 10_000]
    report = scan(some, timeline=False)
    assert report.exit_code() == 1 and report.verdict == "hostile"
    assert len(report.checkpoints) == len(some) > 150
    assert "internal_error" not in {f.code for r in report.files for f in r.findings}
    assert not marker.exists()


class Custom:
    """A user's own config class."""

    def __init__(self):
        self.lr, self.extra = 1e-3, torch.full((2,), 3.0)


class Nested:
    class Inner:
        pass


@pytest.mark.parametrize("is_legacy", [False, True])
def test_unknown_classes_become_placeholders_and_the_tensors_are_scanned(tmp_path, is_legacy):
    weight = torch.ones(3, 3).cumsum(0)
    state = {
        "args": argparse.Namespace(lr=0.1, device=torch.device("cpu")),
        "config": Custom(),
        "inner": Nested.Inner(),
        "path": tmp_path,
        "model": {"w": weight},
        "types": [int, torch.float32, torch.nn.functional.relu],
    }
    path = tmp_path / "t.pt"
    torch.save(state, path, _use_new_zipfile_serialization=not is_legacy)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    report = scan_file(path)
    assert report.verdict == "healthy" and report.findings == ()
    listed = ",".join(report.placeholders)
    assert "argparse.Namespace" in listed and "Custom" in listed
    assert {t.name for t in report.tensors} == {"config.extra", "model.w"}
    weight[1, 1] = float("inf")
    torch.save(state, path, _use_new_zipfile_serialization=not is_legacy)
    (only,) = scan_file(path).findings
    assert (only.code, only.tensor) == ("nonfinite_tensor", "model.w")


def test_nothing_is_imported_for_a_file(tmp_path):
    """A class of a module that is installed but not loaded stays unloaded."""
    assert "this" not in sys.modules and "antigravity" not in sys.modules
    path = tmp_path / "t.pkl"
    path.write_bytes(b"\x80\x02cthis\nThing\n)\x81.")
    report = scan_file(path)
    assert report.placeholders == ("this.Thing",)
    assert "this" not in sys.modules


def test_a_hundred_thousand_keys(tmp_path):
    value = torch.ones(2)
    torch.save({f"layer.{i}.weight": value for i in range(100_000)}, tmp_path / "many.pt")
    begin = time.process_time()
    report = scan_file(tmp_path / "many.pt")
    assert report.verdict == "healthy" and len(report.tensors) == 1
    assert time.process_time() - begin < 15


def test_a_file_that_shrinks_while_it_is_scanned(tmp_path):
    """Cut off by another process between two blocks: a finding, not a crash of the process."""
    from stayfinite.checkpoint.measure import Probe

    path = tmp_path / "t.pt"
    torch.save({"a": torch.rand(5_000_000), "b": torch.rand(5_000_000)}, path)

    def cut(_):
        os.truncate(path, 1000)

    report = scan_file(path, probe=Probe(on_bytes=cut))
    assert "truncated" in {f.code for f in report.findings}


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    report = scan_file(tmp_path / "pipe.pt")
    assert report.verdict == "unreadable" and "regular file" in report.findings[0].message


def test_names_are_safe_to_print(tmp_path):
    torch.save({"evil\x1b[2J\nname": torch.tensor([float("nan")])}, tmp_path / "t.pt")
    (only,) = scan_file(tmp_path / "t.pt").findings
    assert only.tensor == "evil\\x1b[2J\\nname"
