"""Real frameworks that nobody here wrote, unmodified, under the real command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.slow


def line_of(script: Path) -> int:
    lines = script.read_text(encoding="utf-8").splitlines()
    return next(i for i, text in enumerate(lines, 1) if text.endswith("# HERE"))


def run(script: Path, tmp_path: Path, *args: str) -> tuple[subprocess.CompletedProcess, list[dict]]:
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", "run", "--run-dir", str(folder), str(script), *args],
        capture_output=True,
        text=True,
        timeout=1200,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = [json.loads(p.read_text()) for p in folder.glob("incidents/*/incident.json")]
    return done, sorted(found, key=lambda i: i["event"]["step"])


def test_lightning_trainer(tmp_path):
    pytest.importorskip("lightning")
    script = SCRIPTS / "lightning_fit.py"
    done, found = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finite True" in done.stdout
    assert "steps 36\n" in done.stdout
    assert [i["event"]["epoch"] for i in found] == [0, 1]
    first = found[0]
    assert first["event"]["step"] == 9
    assert first["location"]["op"] == "aten.log"
    assert (first["location"]["file"], first["location"]["line"]) == (str(script), line_of(script))
    assert first["diagnosis"]["cause"] == "domain_error"


def test_accelerate_with_accumulation(tmp_path):
    pytest.importorskip("accelerate")
    script = SCRIPTS / "accelerate_loop.py"
    done, (incident,) = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finite True" in done.stdout
    assert incident["event"]["step"] == 10
    assert incident["location"]["op"] == "aten.div"
    assert incident["location"]["line"] == line_of(script)
    assert incident["diagnosis"]["cause"] == "zero_denominator"


def test_transformers_trainer(tmp_path):
    pytest.importorskip("transformers")
    done, (incident,) = run(SCRIPTS / "hf_trainer.py", tmp_path, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "finite True" in done.stdout
    assert "steps 14\n" in done.stdout
    lines = (tmp_path / "run" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    trained = [r["step"] for r in rows if "loss" in r and "incident" not in r.get("flags", ())]
    assert trained == [i for i in range(14) if i != incident["event"]["step"]]
    assert incident["event"]["phase"] == "data"
    assert incident["location"]["chain"][0]["label"] == "batch batch['labels']"
    assert "modeling_bert.py" in incident["location"]["library_file"]
    assert incident["diagnosis"]["cause"] == "bad_input_data"
