"""A script whose files are redirected sees what it would see, and the user's tree stays as it is."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from tests.ladder.helpers import tree

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
SRC = pathlib.Path(__file__).parents[2] / "src"

RUN = """
import sqlite3, sys, tempfile
sys.path.insert(0, {src!r})
from stayfinite.sandbox import RedirectedFiles
files = RedirectedFiles({folder!r})
files.install()
connect = sqlite3.connect
sqlite3.connect = lambda name: connect(files.to_write(name))
sys.path[0] = "."
with open({script!r}) as f:
    code = f.read()
exec(compile(code, "files.py", "exec"))
"""


def make_tree(folder):
    for name in ("keep.txt", "edit.txt", "gone.txt", "moved.txt", "tree/a/b.txt", "doomed/x.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (folder / "helper.py").write_text("VALUE = 1\n")


def run(code, cwd, temp):
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temp)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, env=env, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    return done


@pytest.fixture
def users(tmp_path):
    folder = tmp_path / "users"
    folder.mkdir()
    make_tree(folder)
    return folder


def redirected_run(users, tmp_path, script):
    redirected = tmp_path / "redirected"
    (redirected / "tmp").mkdir(parents=True, exist_ok=True)
    code = RUN.format(src=str(SRC), folder=str(redirected), script=str(script))
    return run(code, users, redirected / "tmp")


def test_the_script_sees_its_own_files_and_the_users_stay(users, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(users, plain)
    (tmp_path / "tmp").mkdir()
    before = tree(users)

    alone = run((SCRIPTS / "files.py").read_text(), plain, tmp_path / "tmp")
    kept = redirected_run(users, tmp_path, SCRIPTS / "files.py")

    assert alone.returncode == 0, alone.stderr
    assert kept.returncode == 0, kept.stderr
    assert kept.stdout == alone.stdout
    assert tree(users) == before
    assert tree(plain) != before


def test_what_cannot_be_redirected_is_refused(users, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import io, os\n"
        "for act in (lambda: io.FileIO('keep.txt', 'w'),\n"
        "            lambda: os.unlink('keep.txt', dir_fd=os.open('.', os.O_RDONLY))):\n"
        "    try:\n"
        "        act()\n"
        "    except PermissionError as e:\n"
        "        print(e.strerror)\n"
    )
    before = tree(users)
    done = redirected_run(users, tmp_path, script)
    assert done.stdout == 2 * "kept from being changed in a run that is only a trial\n", done.stderr
    assert tree(users) == before


def test_a_changed_module_is_imported_even_where_a_cache_is_there(users, tmp_path):
    subprocess.run([sys.executable, "-m", "py_compile", "helper.py"], cwd=users, check=True)
    assert list(users.rglob("*.pyc"))
    redirected = tmp_path / "redirected"
    place = pathlib.Path(str(redirected / "files") + str(users / "helper.py"))
    place.parent.mkdir(parents=True)
    place.write_text("VALUE = 2\n")
    script = tmp_path / "script.py"
    script.write_text("import helper\nprint(helper.VALUE, open('helper.py').read())\n")
    before = tree(users)
    assert redirected_run(users, tmp_path, script).stdout == "2 VALUE = 2\n\n"
    assert tree(users) == before
