"""Processes that run a script are forks of one that has imported torch; or ordinary ones."""

import contextlib
import os
import sys

import pytest

from stayfinite.preflight.capture.starter import Starter


@pytest.mark.parametrize("is_forked", [True, False])
def test_module_is_run_as_python_would_run_it(tmp_path, is_forked):
    (tmp_path / "good.json").write_text('{"a": 1}')
    (tmp_path / "bad.json").write_text("{")
    starter = Starter()
    starter._is_useless = starter._is_useless or not is_forked
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with contextlib.closing(starter):
        codes = {}
        for name in ("good", "bad"):
            output = tmp_path / f"{name}.txt"
            process = starter.start("json.tool", tmp_path / f"{name}.json", output, environ)
            codes[name] = process.wait(timeout=600)
            assert process.poll() == process.returncode == codes[name]
        forker = starter._forker
    assert codes == {"good": 0, "bad": 1}
    assert (tmp_path / "good.txt").read_text().split() == ["{", '"a":', "1", "}"]
    assert "Expecting" in (tmp_path / "bad.txt").read_text()
    if is_forked and sys.platform == "linux":
        assert forker is not None and forker.returncode == 0


def test_forking_process_that_dies_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    starter = Starter()
    with contextlib.closing(starter):
        process = starter.start("json.tool", tmp_path, tmp_path / "out.txt", os.environ)
        assert process.wait(timeout=600) == 1
    assert starter._is_useless
