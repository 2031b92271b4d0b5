"""Healthy trainings pass: no fail, and at most one warning each, over all groups."""

from pathlib import Path

import pytest
from tests.preflight.healthy import TARGETS

from stayfinite.preflight.capture.script import check_script
from stayfinite.preflight.runner.check import check
from stayfinite.preflight.target import ScriptTarget

pytestmark = pytest.mark.usefixtures("shared_forks")


def assert_ready(report):
    problems = [
        f"{f.status} {f.check} {f.subject}: {f.value}" for f in report.findings if f.is_problem
    ]
    assert report.count("fail") == 0, problems
    assert report.count("warn") <= 1, problems
    assert not report.skipped
    assert report.count("pass") > 20


SOME = (
    "transformer_lm",
    "vae",
    "moe",
    "padded_encoder",
    "fp16_scaler",
    "critic",
    "complex_and_lazy",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SOME else pytest.mark.whole) for n in TARGETS]
)
def test_healthy_training_passes_every_group(name):
    assert_ready(check(TARGETS[name]))


def test_healthy_mlp_passes_what_probes_it():
    report = check(TARGETS["mlp"], only=["init,forward,edges,precision,stability"])
    assert report.verdict == "ready"
    assert_ready(report)


SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["healthy_gan", "healthy_amp", "healthy_words"])
def test_healthy_script_passes_every_group(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_ready(check_script(ScriptTarget(str(SCRIPTS / f"{name}.py"))))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_leaves_in_a_list_of_a_running_script_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = ScriptTarget(str(SCRIPTS / "broken_leaves.py"))
    report = check_script(target, only=["init,edges"])
    found = {(f.check, f.subject) for f in report.findings if f.status == "fail"}
    assert found == {
        ("init/unregistered", "tables[0]"),
        ("init/unregistered", "tables[1]"),
        ("edges/size", "broken_leaves.py:20"),
    }
