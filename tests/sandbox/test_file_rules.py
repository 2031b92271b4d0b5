"""What a replay writes is read back by it, and never reaches the user's files."""
# ruff: noqa: SIM115  (files are opened as scripts open them)

import glob
import json
import os
import pathlib
import pickle
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import zipfile

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.sandbox.test_compute import contents

from stayfinite.sandbox import Refused, computing_only


@pytest.fixture
def users(tmp_path, monkeypatch):
    for name in ("keep.txt", "edit.txt", "tree/a/b.txt", "doomed/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def use_files(log):
    """Everything that a script does with files, and what it sees of it."""
    with open("edit.txt", "a") as f:
        f.write("more\n")
    log.append(open("edit.txt").read())
    pathlib.Path("new").mkdir()
    os.makedirs("new/deep/er", exist_ok=True)
    pathlib.Path("new/deep/a.json").write_text(json.dumps([1]))
    log.append(sorted(os.listdir("new")) + sorted(os.listdir(".")))
    os.rename("keep.txt", "new/kept.txt")
    log.append([os.path.exists("keep.txt"), pathlib.Path("new/kept.txt").read_text()])
    os.replace("new/deep/a.json", "edit.txt")
    log.append(json.load(open("edit.txt")))
    shutil.copytree("tree", "copied")
    shutil.rmtree("doomed")
    shutil.move("copied", "moved")
    log.append(sorted(glob.glob("**", recursive=True)))
    log.append(sorted(str(p) for p in pathlib.Path(".").rglob("*")))
    with pytest.raises(FileNotFoundError):
        open("doomed/x.txt")
    os.chdir("tree")
    log.append([pathlib.Path("a/b.txt").read_text(), os.path.basename(os.getcwd())])
    pathlib.Path("here.txt").touch()
    os.chdir("..")
    log.append(os.listdir("tree/a") + sorted(os.listdir("tree")))
    fd = os.open("by_fd.txt", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"abc")
    os.ftruncate(fd, 2)
    os.fsync(fd)
    os.close(fd)
    log.append(os.stat("by_fd.txt").st_size)
    os.chmod("by_fd.txt", 0o600)
    log.append(stat.S_IMODE(os.stat("by_fd.txt").st_mode))
    with tempfile.NamedTemporaryFile("w+") as f, tempfile.TemporaryDirectory() as folder:
        f.write("x")
        f.flush()
        log.append([os.path.getsize(f.name), os.listdir(folder)])
    with tarfile.open("a.tar", "w") as tar:
        tar.add("tree")
    with zipfile.ZipFile("a.zip", "w") as made:
        made.writestr("x", "y")
    log.append([tarfile.open("a.tar").getnames(), zipfile.ZipFile("a.zip").namelist()])
    os.symlink("edit.txt", "link.txt")
    log.append(os.path.islink("link.txt"))


def use_native_writers(log):
    torch.save({"a": torch.ones(2)}, "m.pt")
    log.append(torch.load("m.pt")["a"].sum().item())
    safetensors.torch.save_file({"a": torch.ones(3)}, "m.safetensors")
    safetensors.numpy.save_file({"a": np.ones(3)}, "n.safetensors")
    log.append([os.path.getsize("m.safetensors") > 0, os.path.getsize("n.safetensors") > 0])
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save("traced.pt")
    torch.jit.script(torch.nn.Linear(2, 2)).save("scripted.pt")
    torch.jit.save(torch.jit.trace(torch.sqrt, torch.ones(1, 2)), "traced_function.pt")
    np.save("a.npy", np.ones(3))
    np.savez("a.npz", x=np.ones(2))
    np.ones(2).tofile("b.bin")
    log.append([np.load("a.npy").sum(), np.load("a.npz")["x"].sum(), np.fromfile("b.bin").sum()])
    made = np.memmap("made.bin", dtype=np.uint8, mode="w+", shape=(4,))
    made[:] = 1
    np.memmap("data.bin", dtype=np.uint8)[:] = 7
    torch.from_file("data.bin", shared=True, size=4, dtype=torch.uint8).fill_(9)
    with open("p.pkl", "wb") as f:
        pickle.dump([1], f)
    log.append(pickle.load(open("p.pkl", "rb")))
    base = sqlite3.connect("base.db")
    base.execute("create table t (x)")
    base.close()


@pytest.mark.filterwarnings("ignore")
def test_a_replay_sees_what_the_script_would_see_and_the_users_files_stay(
    users, tmp_path_factory, monkeypatch
):
    plain = tmp_path_factory.mktemp("plain")
    shutil.copytree(users, plain, dirs_exist_ok=True)
    before, alone, replayed = contents(users), [], []
    with computing_only() as report:
        use_files(replayed)
        assert (tmp := [p for p in report.redirected if p.endswith("by_fd.txt")])
    assert tmp == [str(users / "by_fd.txt")]
    assert os.getcwd() == str(users)
    assert contents(users) == before
    monkeypatch.chdir(plain)
    use_files(alone)
    assert replayed == alone


@pytest.mark.filterwarnings("ignore")
def test_writers_that_pass_open_by_are_redirected(users):
    (users / "data.bin").write_bytes(b"abcd")
    (users / "m.pt").write_bytes(b"abcd")
    before, log = contents(users), []
    with computing_only():
        use_native_writers(log)
    assert contents(users) == before
    assert log == [2.0, [True, True], [3.0, 2.0, 2.0], [1]]


def test_the_folder_is_gone_afterwards_and_none_is_made_for_nothing(users, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(users))
    with computing_only():
        pathlib.Path("keep.txt").read_text()
        os.path.exists("absent")
    with pytest.raises(ValueError), computing_only():
        assert not glob.glob("stayfinite*")
        pathlib.Path("new.txt").write_text("x")
        raise ValueError
    assert sorted(os.listdir(".")) == ["doomed", "edit.txt", "keep.txt", "tree"]


def test_a_script_cannot_reach_the_users_files_by_descriptors_or_openers(users):
    folder = os.open(".", os.O_RDONLY)
    before = contents(users)
    with computing_only() as report:
        for act in (
            lambda: os.unlink("keep.txt", dir_fd=folder),
            lambda: os.open("keep.txt", os.O_WRONLY, dir_fd=folder),
            lambda: os.rename("keep.txt", "x", src_dir_fd=folder, dst_dir_fd=folder),
            lambda: open(folder, "w"),
            lambda: os.truncate(folder, 0),
            lambda: open("/dev/tty", "w"),
            lambda: open("/proc/self/comm", "w"),
            lambda: os.chdir(folder),
        ):
            with pytest.raises(Refused):
                act()
        with open("keep.txt", "w", opener=os.open) as f:
            f.write("gone")
        with open("keep.txt", opener=os.open) as f:
            assert f.read() == "gone"
        with open(os.devnull, "w") as f:
            f.write("nowhere")
    os.close(folder)
    assert contents(users) == before
    assert len(report.refused) == 8


def test_a_module_first_imported_in_a_replay_leaves_no_cache(users, monkeypatch):
    (users / "first_import.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(users))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    with computing_only():
        import first_import

        assert first_import.VALUE == 3
    assert not (users / "__pycache__").exists()


def test_errors_are_those_of_the_real_functions(users):
    with computing_only():
        for act, error in (
            (lambda: open("absent.txt"), FileNotFoundError),
            (lambda: open("keep.txt", "x"), FileExistsError),
            (lambda: os.mkdir("tree"), FileExistsError),
            (lambda: open("absent/new.txt", "w"), FileNotFoundError),
            (lambda: os.remove("absent.txt"), FileNotFoundError),
            (lambda: os.chdir("absent"), FileNotFoundError),
            (lambda: open("keep.txt", "q"), ValueError),
        ):
            with pytest.raises(error):
                act()
