"""The script's traceback is what it would be without us."""

import json
import os
import shutil
import traceback

from stayfinite.patches import Target, manager, subscribe
from stayfinite.runtime.script.traceback_view import _without_us


def files_of(error):
    stack = _without_us(traceback.extract_tb(error.__traceback__))
    return [os.path.basename(f.filename) for f in stack]


def test_what_works_for_us_is_left_out_and_what_the_script_has_called_stays():
    def read():
        try:
            shutil.copyfile("missing", "elsewhere")
        except OSError as error:
            return files_of(error)

    plain = read()
    manager_file = manager.__file__

    def passed_on(original, subscribers):
        space = {"original": original}
        code = "def copyfile(*args): return original(*args)"
        exec(compile(code, manager_file, "exec"), space)  # a wrapper of ours
        return space["copyfile"]

    target = Target(shutil, "copyfile", "an example", "examples")
    with subscribe(target, passed_on, "me"):
        assert read() == plain == ["test_traceback_view.py", "shutil.py"]

    space = {"json": json}
    exec(compile("def ours(): json.loads('{')", manager_file, "exec"), space)
    try:
        space["ours"]()
    except ValueError as error:
        assert files_of(error) == ["test_traceback_view.py"]
