"""Where incidents go."""

import json
import stat
from dataclasses import replace

import pytest

from stayfinite.records import Event, Incident, Location
from stayfinite.report.store import CAPSULE, MAX_BYTES, CapsuleStore, RunFolder

INCIDENT = Incident(id="step000003-abc", event=Event(step=3, phase="loss", value=float("nan")))


def test_json_and_text_side_by_side(tmp_path):
    reported = []
    saved = RunFolder(tmp_path / "a" / "b", say=reported.append).save(INCIDENT)
    home = tmp_path / "a" / "b" / "incidents" / "step000003-abc"
    assert saved.path == str(home)
    assert reported == [saved]
    assert sorted(p.name for p in home.iterdir()) == ["incident.json", "incident.txt"]
    assert json.loads((home / "incident.json").read_text())["event"]["value"] == "nan"
    assert (home / "incident.txt").read_text().startswith("stayfinite: step 3 (epoch 0): the loss")


def test_no_folder_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert RunFolder(None).save(INCIDENT) is INCIDENT
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "stayfinite: step 3: the loss is nan\n"


def test_a_folder_that_cannot_be_written_warns_once(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    reported = []
    folder = RunFolder(tmp_path / "file", say=reported.append)
    assert folder.save(INCIDENT).path is None
    assert folder.save(INCIDENT).path is None
    assert len(reported) == 2
    assert capsys.readouterr().err == (
        f"stayfinite: cannot write to {tmp_path / 'file'} (Not a directory); "
        "the training goes on, incidents are not saved\n"
    )


def incident(number, line):
    return Incident(
        id=f"step{number:06d}-x",
        event=Event(step=number, phase="forward", value=float("nan"), symptom="loss"),
        location=Location(op="aten.log", file="model.py", line=line),
    )


def keep(store, found, size=1000):
    note = store.refuses(found, size)
    return note or store.write(found, lambda path: path.write_bytes(bytes(size)))


def test_sixty_incidents_of_three_kinds_are_three_capsules(tmp_path):
    store = CapsuleStore(tmp_path)
    notes = [keep(store, incident(i, line=i % 3)) for i in range(60)]
    assert notes.count("") == 3 and len(list(tmp_path.glob(f"incidents/*/{CAPSULE}"))) == 3
    assert notes[-1] == "no capsule of its own: the same as step000002-x, whose state is saved"


def test_the_total_has_a_limit_that_counts_earlier_sessions(tmp_path):
    first = CapsuleStore(tmp_path, max_total_bytes=2500)
    assert keep(first, incident(1, line=1)) == keep(first, incident(2, line=2)) == ""
    again = CapsuleStore(tmp_path, max_total_bytes=2500)
    assert "this run has 0 MB of them, the limit is 0 MB" in keep(again, incident(3, line=3))


def test_one_that_is_too_large_is_reported(tmp_path):
    assert "the limit is 512 MB" in CapsuleStore(tmp_path).refuses(incident(1, 1), MAX_BYTES + 1)


def test_folders_and_files_are_for_the_owner_only(tmp_path):
    store = CapsuleStore(tmp_path / "run")
    assert keep(store, incident(1, 1)) == ""
    for path in (tmp_path / "run").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_full_disk_leaves_no_half_capsule(tmp_path):
    def fail(path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    store = CapsuleStore(tmp_path)
    assert store.write(incident(1, 1), fail) == "no capsule: No space left on device"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert keep(store, replace(incident(2, 1))) == ""


@pytest.mark.parametrize("size", [0, 1])
def test_the_same_incident_again_may_be_written(tmp_path, size):
    store = CapsuleStore(tmp_path)
    assert keep(store, incident(1, 1), size) == "" and keep(store, incident(1, 1), size) == ""


def test_a_capsule_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    assert "no capsule: " in CapsuleStore(tmp_path / "run").write(INCIDENT, lambda path: None)
