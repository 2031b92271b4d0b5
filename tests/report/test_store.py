"""Where incidents go."""

import json

from stayfinite.records import Event, Incident
from stayfinite.report.store import RunFolder

INCIDENT = Incident(id="step000003-abc", event=Event(step=3, phase="loss", value=float("nan")))


def test_json_and_text_side_by_side(tmp_path):
    told = []
    saved = RunFolder(tmp_path / "a" / "b", say=told.append).save(INCIDENT)
    home = tmp_path / "a" / "b" / "incidents" / "step000003-abc"
    assert saved.path == str(home)
    assert told == [saved]
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
    told = []
    folder = RunFolder(tmp_path / "file", say=told.append)
    assert folder.save(INCIDENT).path is None
    assert folder.save(INCIDENT).path is None
    assert len(told) == 2
    assert capsys.readouterr().err == (
        f"stayfinite: cannot write to {tmp_path / 'file'} (Not a directory); "
        "the training goes on, incidents are not saved\n"
    )
