"""Quarantine: moves, never deletes, can be undone, and an interrupt leaves nothing half moved."""

import json
import os

import pytest
import torch
from tests.checkpoint.test_scan import make_run

from stayfinite.checkpoint import move, plan_quarantine, quarantine, scan, undo
from stayfinite.errors import CheckpointError, UsageError


@pytest.fixture
def run(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "sub").mkdir()
    (folder / "sub" / "broken.pt").write_bytes(b"PK\x03\x04nothing")
    return folder


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_there_and_back(run, tmp_path):
    before = tree(run)
    log = move(plan_quarantine(scan(run).checkpoints, tmp_path / "q"))
    assert sorted(tree(run)) == ["step_100.pt", "step_200.pt", "step_300.pt"]
    kept = tree(log.parent)
    assert sorted(kept) == [quarantine.LOG_NAME, "step_1000.pt", "step_400.pt", "sub/broken.pt"]
    assert all(kept[n] == before[n] for n in kept if n != quarantine.LOG_NAME)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {e["verdict"] for e in entries} == {"corrupt", "unreadable"}
    assert len(undo(log)) == 3 and tree(run) == before
    assert undo(log.parent) == []


def test_nothing_bad_nothing_moved(run, tmp_path):
    assert plan_quarantine(scan([run / "step_100.pt"]).checkpoints, tmp_path / "q") == []
    with pytest.raises(UsageError, match="nothing to move"):
        move([])


def test_an_interrupt_leaves_whole_files_and_a_log_that_undoes(run, tmp_path, monkeypatch):
    before = tree(run)
    moves = plan_quarantine(scan(run).checkpoints, tmp_path / "q")
    real, calls = os.rename, []

    def interrupted(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(quarantine.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        move(moves)
    monkeypatch.undo()
    now = tree(run) | {
        k: v for k, v in tree(moves[0].log.parent).items() if k != quarantine.LOG_NAME
    }
    assert now == before  # every checkpoint is in exactly one of the two places
    assert len(undo(moves[0].log)) == 1 and tree(run) == before


def test_undo_never_overwrites(run, tmp_path):
    log = move(plan_quarantine(scan(run).checkpoints, tmp_path / "q"))
    (run / "step_400.pt").write_bytes(b"new")
    with pytest.raises(CheckpointError, match="something new in its place"):
        undo(log)
    assert (run / "step_400.pt").read_bytes() == b"new" and not (run / "step_1000.pt").exists()


def test_two_quarantines_do_not_meet(run, tmp_path):
    first = move(plan_quarantine(scan([run / "step_400.pt"]).checkpoints, tmp_path / "q"))
    torch.save({"w": torch.tensor([float("nan")])}, run / "step_400.pt")
    second = move(plan_quarantine(scan([run / "step_400.pt"]).checkpoints, tmp_path / "q"))
    assert first.parent != second.parent
    assert len(list((tmp_path / "q").rglob("step_400.pt"))) == 2


def test_a_folder_moves_as_a_whole_but_not_with_good_checkpoints_inside(tmp_path):
    import safetensors.torch

    run = tmp_path / "out"
    for name, value in (("", float("nan")), ("checkpoint-1", 1.0), ("checkpoint-2", float("nan"))):
        folder = run / name
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file({"w": torch.full((2,), value)}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
    log = move(plan_quarantine(scan(run).checkpoints, tmp_path / "q"))
    assert sorted(tree(run)) == [
        "checkpoint-1/config.json",
        "checkpoint-1/model.safetensors",
        "config.json",
    ]
    assert not (run / "checkpoint-2").exists()
    assert len(undo(log)) == 2 and (run / "checkpoint-2" / "config.json").exists()


def test_wrong_places(run, tmp_path):
    report = scan(run)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="must be a folder"):
        plan_quarantine(report.checkpoints, tmp_path / "file")
    with pytest.raises(UsageError, match="cannot read the quarantine log"):
        undo(tmp_path / "none")
    with pytest.raises(UsageError, match="is not a quarantine log"):
        undo(tmp_path / "file")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a second file system")
def test_another_file_system_is_refused(run, tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is the same file system")
        before = tree(run)
        with pytest.raises(UsageError, match="another file system"):
            move(plan_quarantine(scan(run).checkpoints, other))
        assert tree(run) == before and os.listdir(other) == []
