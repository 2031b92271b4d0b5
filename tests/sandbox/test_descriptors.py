"""Descriptors that were open before a replay are left alone; its own work."""

import os

import pytest

from stayfinite.sandbox import Refused, computing_only


@pytest.fixture
def users(tmp_path):
    fd = os.open(tmp_path / "log.bin", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"before")
    os.lseek(fd, 2, os.SEEK_SET)
    yield fd
    os.close(fd)


def test_a_descriptor_of_the_users_is_refused_for_everything_that_changes_it(users, tmp_path):
    other = os.open(tmp_path / "log.bin", os.O_RDONLY)
    acts = {
        "write": lambda: os.write(users, b"x"),
        "writev": lambda: os.writev(users, [b"x"]),
        "pwrite": lambda: os.pwrite(users, b"x", 0),
        "ftruncate": lambda: os.ftruncate(users, 0),
        "fchmod": lambda: os.fchmod(users, 0o600),
        "read": lambda: os.read(users, 1),
        "lseek": lambda: os.lseek(users, 0, os.SEEK_SET),
        "close": lambda: os.close(users),
        "dup": lambda: os.dup(users),
        "dup2": lambda: os.dup2(other, users),
        "sendfile": lambda: os.sendfile(users, other, 0, 1),
        "closerange": lambda: os.closerange(users, users + 1),
        "fchdir": lambda: os.fchdir(other),
    }
    with computing_only() as report:
        for act in acts.values():
            with pytest.raises(Refused):
                act()
    os.close(other)
    assert sum(report.refused.values()) == len(acts)
    assert os.lseek(users, 0, os.SEEK_CUR) == 2
    assert (tmp_path / "log.bin").read_bytes() == b"before"


def test_stdout_and_stderr_are_muted_not_refused(capfd):
    with computing_only() as report:
        assert os.write(1, b"abc") == 3
        assert os.writev(2, [b"abc", bytearray(2)]) == 5
    assert capfd.readouterr() == ("", "")
    assert report.refused == {}


def test_a_replays_own_descriptors_work(tmp_path):
    with computing_only():
        read, write = os.pipe()
        assert os.write(write, b"abc") == 3
        assert os.read(read, 9) == b"abc"
        os.close(read)
        os.close(write)
        with open(tmp_path / "x", "w") as f:
            os.write(f.fileno(), b"direct")
            copy = os.dup(f.fileno())
            os.close(copy)
        with open(tmp_path / "x") as f:
            assert os.read(f.fileno(), 9) == b"direct"
        with pytest.raises(Refused):
            os.write(write, b"closed")
    assert os.listdir(tmp_path) == []
