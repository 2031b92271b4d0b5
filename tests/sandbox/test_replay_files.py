"""Where one replay's files are."""

import os

import pytest

from stayfinite.sandbox.replay_files import ReplayFiles


class Refusal(Exception):
    pass


@pytest.fixture
def written():
    return []


@pytest.fixture
def files(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refuse(what):
        raise Refusal(what)

    made = ReplayFiles(refuse, written.append, lambda function, *a, **k: function(*a, **k))
    yield made
    made.remove_all()


def test_a_file_is_written_elsewhere_and_read_back_from_there(files, written, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("real")
    assert files.to_read(str(path)) == str(path)
    with files.open(path, "a") as f:
        f.write(" and more")
    with files.open(path) as f:
        assert f.read() == "real and more"
    assert path.read_text() == "real"
    assert written == [str(path)]


def test_devices_that_forget_may_be_written_and_others_not(files):
    with files.open("/dev/null", "w") as f:
        f.write("gone")
    assert not files.is_touched
    with pytest.raises(Refusal, match="writing to /dev/tty"):
        files.to_write("/dev/tty")


def test_the_directory_only_looks_changed(files, tmp_path):
    (tmp_path / "inner").mkdir()
    files.chdir("inner")
    assert files.getcwd() == str(tmp_path / "inner")
    assert os.getcwd() == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.chdir("nowhere")


def test_our_own_work_goes_outside(tmp_path):
    calls = []

    def outside(function, *args, **kwargs):
        calls.append(function.__name__)
        return function(*args, **kwargs)

    files = ReplayFiles(pytest.fail, lambda path: None, outside)
    with files.open(tmp_path / "a.txt", "w") as f:
        f.write("x")
    files.remove_all()
    assert "mkdir" in calls and "open" in calls and "rmtree" in calls
