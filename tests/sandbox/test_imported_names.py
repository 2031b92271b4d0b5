"""`from os import remove` does not pass the sandbox by."""

import os
import sys
import types

import pytest

from stayfinite.sandbox import Refused, computing_only
from stayfinite.sandbox.imported_names import imported_names


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A module of the user's with names of its own for functions."""
    module = types.ModuleType("users_script")
    module.__file__ = str(tmp_path / "users_script.py")
    exec("from os import remove as rm, system\nfrom time import sleep", vars(module))
    monkeypatch.setitem(sys.modules, "users_script", module)
    (tmp_path / "keep.txt").write_text("x")
    return module


def test_names_of_the_users_modules_are_found(users):
    found = list(imported_names({id(os.remove): "file", id(os.system): "process"}))
    assert (users, "rm", "file") in found and (users, "system", "process") in found
    assert not [m for m, _, _ in found if m is os]


def test_a_function_that_was_imported_by_name_is_redirected_or_refused(users, tmp_path):
    before = dict(vars(users))
    with computing_only():
        users.rm(tmp_path / "keep.txt")
        assert not (tmp_path / "keep.txt").exists()
        users.sleep(1000)
        with pytest.raises(Refused):
            users.system("date")
    assert (tmp_path / "keep.txt").exists()
    assert all(vars(users)[k] is v for k, v in before.items())
