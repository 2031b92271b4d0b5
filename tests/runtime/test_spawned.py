"""The patches of processes that a script starts are put in and taken out without ending the script."""

import contextlib
import io
import multiprocessing.process

import pytest

from stayfinite import Settings
from stayfinite.patches.manager import Subscription
from stayfinite.recover.policy import Policy
from stayfinite.runtime.script import run_script, spawned
from stayfinite.runtime.script.run_script import ScriptRun


def code_of(tmp_path):
    """The exit code of a script that has nothing to train."""
    script = tmp_path / "nothing.py"
    script.write_text("print('done')\n")
    run = ScriptRun(Settings(), Policy(), tmp_path / "run", "nobody")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run.run_file(str(script), [])
    assert out.getvalue() == "done\n"
    return code


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch):
    monkeypatch.setattr(run_script.sys, "argv", list(run_script.sys.argv))
    monkeypatch.setattr(run_script.sys, "path", list(run_script.sys.path))
    monkeypatch.setitem(run_script.sys.modules, "__main__", run_script.sys.modules["__main__"])


def test_a_patch_that_cannot_be_put_in_does_not_end_the_script(monkeypatch, tmp_path):
    def fail(*given):
        raise RuntimeError("no patch")

    monkeypatch.setattr(spawned, "subscribe", fail)
    assert code_of(tmp_path) == 0


def test_a_patch_that_cannot_be_taken_out_does_not_end_the_script(monkeypatch, tmp_path):
    before = multiprocessing.process.BaseProcess.start
    close, left = Subscription.close, []

    def close_most(subscription):
        if subscription.target.name == "start":
            left.append(subscription)
            raise ZeroDivisionError
        close(subscription)

    with monkeypatch.context() as patched:
        patched.setattr(Subscription, "close", close_most)
        assert code_of(tmp_path) == 0
    close(left[0])
    assert multiprocessing.process.BaseProcess.start is before
