"""Run folders are for their owner."""

import os
import stat

import pytest
from tests.launch import forked

from stayfinite.private import make_folder, open_private


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_missing_folders_are_made_for_the_owner(tmp_path):
    os.chmod(tmp_path, 0o755)
    make_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path), mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (
        0o755,
        0o700,
        0o700,
    )


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file")


def test_files_are_made_for_the_owner(tmp_path):
    with open(tmp_path / "x", "w", opener=open_private) as f:
        f.write("1")
    assert mode(tmp_path / "x") == 0o600


SCRIPT = """
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(40, 4)
data[20, 0] = float("nan")
for x in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("run")
    (home / "train.py").write_text(SCRIPT)
    for name, options in (("plain", []), ("kept", ["--store-args"])):
        command = ["-m", "stayfinite", "run", *options, "--run-dir", name, "train.py"]
        done = forked([*command, "--api-key", "SECRET-KEY-1", "--lr", "0.5"], home)
        assert done.code == 0, done.err
    return home


def test_a_whole_run_folder_is_for_the_owner(run_folder):
    paths = [run_folder / "plain", *(run_folder / "plain").rglob("*")]
    assert any(p.name == "capsule.pt" for p in paths) and any(p.suffix == ".jsonl" for p in paths)
    open_to_others = [str(p) for p in paths if mode(p) & 0o077]
    assert open_to_others == []


def test_secrets_of_the_command_line_are_not_stored_unless_asked_for(run_folder):
    def holds(name):
        files = [p for p in (run_folder / name).rglob("*") if p.is_file()]
        return any(b"SECRET-KEY-1" in p.read_bytes() for p in files)

    assert not holds("plain") and holds("kept")


def test_what_an_incident_says_is_shown_and_never_run(run_folder, tmp_path):
    import shutil

    import torch

    (incident,) = (run_folder / "plain" / "incidents").iterdir()
    shutil.copytree(incident, tmp_path / "sent")
    capsule = torch.load(tmp_path / "sent" / "capsule.pt", weights_only=True)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')")
    capsule["script"], capsule["args"] = str(tmp_path / "evil.py"), ["\x1b[2J"]
    torch.save(capsule, tmp_path / "sent" / "capsule.pt")
    for command in (["replay"], ["ladder", "--after-incident"]):
        done = forked(["-m", "stayfinite", *command, str(tmp_path / "sent")], tmp_path)
        assert done.code == 2, done.err
        assert "says that this was run" in done.err and "evil.py" in done.err
        assert "\x1b" not in done.err
    assert not (tmp_path / "RAN").exists()


def test_a_hostile_capsule_is_not_opened(run_folder, tmp_path):
    import shutil

    (incident,) = (run_folder / "plain" / "incidents").iterdir()
    shutil.copytree(incident, tmp_path / "sent")
    (tmp_path / "sent" / "capsule.pt").write_bytes(b"\x80\x02cos\nsystem\nU\x04trueR.")
    command = ["-m", "stayfinite", "replay", str(tmp_path / "sent"), "--", "train.py"]
    done = forked(command, tmp_path)
    assert done.code == 2 and "is hostile and was not opened" in done.err
