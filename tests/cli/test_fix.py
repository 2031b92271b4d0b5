"""`stayfinite fix`: what it shows, what it writes, and what it refuses."""

import hashlib
import json
import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from stayfinite.cli.app import app
from stayfinite.records import Diagnosis, Event, Fix, Incident, Proof
from stayfinite.remedies import unified_diff

BEFORE = "import torch\ny = torch.log(x)\n"
AFTER = "import torch\ny = torch.log(x.clamp(min=1e-12))\n"
PROOF = Proof(is_step_finite=True, num_healthy=2, largest_change=0.0, num_after=3)


def saved(
    folder, path="train.py", status="proved", before=BEFORE, after=AFTER, file=None, name="one"
):
    fix = Fix(
        title="a floor", why="log of 0 is -inf", status=status, proof=PROOF,
        diff=unified_diff(path, before, after), file=file or os.path.abspath(path),
        file_sha256=hashlib.sha256(before.encode()).hexdigest(),
    )  # fmt: skip
    incident = Incident(
        id=name, event=Event(step=3, phase="loss", value=float("nan")),
        diagnosis=Diagnosis(cause="log_of_zero", confidence=0.9, summary="zero", fixes=(fix,)),
    )  # fmt: skip
    home = folder / "run" / "incidents" / name
    home.mkdir(parents=True)
    (home / "incident.json").write_text(incident.to_json())
    return home


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BEFORE)
    return tmp_path


def fix(*arguments):
    return CliRunner().invoke(app, ["fix", *map(str, arguments)])


def test_it_shows_the_diff_and_its_proof(here):
    home = saved(here)
    for path in (here / "run", home, home / "incident.json"):
        shown = fix(path)
        assert shown.exit_code == 0
        assert "+y = torch.log(x.clamp(min=1e-12))" in shown.output
        assert "exactly this diff was run; step 3 is finite; 2 healthy steps" in shown.output
    assert (here / "train.py").read_text() == BEFORE


def test_incidents_with_the_same_change_are_counted_and_undo_says_only_what_it_did(here):
    for name in ("one", "two", "three"):
        saved(here, name=name)
    shown = fix("run", "--apply").output
    assert shown.count("+++ b/train.py") == 1
    assert "the same change is for steps 3, 3" in shown
    assert fix("run", "--undo").output.count("\n") == 1


def test_it_writes_keeps_a_copy_and_puts_it_back(here):
    saved(here)
    assert fix("run", "--apply").exit_code == 0
    assert (here / "train.py").read_text() == AFTER
    assert (here / "train.py.before-fix").read_text() == BEFORE
    assert "has this change already" in fix("run", "--apply").output
    assert fix("run", "--undo").exit_code == 0
    assert (here / "train.py").read_text() == BEFORE
    assert not (here / "train.py.before-fix").exists()


def test_what_a_later_run_proves_is_written_too_and_taken_back_first(here):
    saved(here)
    fix("run", "--apply")
    later = AFTER + "z = y.exp()\n"
    saved(here / "again", before=AFTER, after=later)
    assert fix("again/run", "--apply").exit_code == 0
    assert (here / "train.py").read_text() == later
    assert (here / "train.py.before-fix-2").read_text() == AFTER
    assert fix("run", "--undo").exit_code == 1  # not the last one that was written
    assert fix("again/run", "--undo").exit_code == 0 and fix("run", "--undo").exit_code == 0
    assert (here / "train.py").read_text() == BEFORE
    assert not list(here.glob("*.before-fix*"))


def test_what_one_run_proves_for_several_lines_is_written_together(here):
    lines = [f"a{n} = {n}\n" for n in range(20)]
    text = "".join(lines)
    (here / "train.py").write_text(text)
    for name, number, new in (("one", 15, "b = 1\n"), ("two", 2, "c = 1\n"), ("three", 16, "")):
        after = "".join(new if n == number else line for n, line in enumerate(lines))
        saved(here, before=text, after=after, name=name)
    made = fix("run", "--apply")
    assert made.exit_code == 1  # one of the three changes lines that another has changed
    assert "in 2 places, each proved by itself and not yet run together" in made.output
    assert "it changes lines that another change was written to" in made.output
    written = (here / "train.py").read_text().splitlines(keepends=True)
    assert (written[2], written[15], written[16]) == ("c = 1\n", "b = 1\n", lines[16])
    assert fix("run", "--undo").exit_code == 0
    assert (here / "train.py").read_text() == text


def test_of_two_changes_for_one_failure_the_first_is_written(here):
    home = saved(here)
    incident = Incident.from_json((home / "incident.json").read_text())
    other = replace(
        incident.diagnosis.fixes[0], diff=unified_diff("train.py", BEFORE, BEFORE + "z = 1\n")
    )
    both = replace(incident.diagnosis, fixes=(*incident.diagnosis.fixes, other))
    (home / "incident.json").write_text(replace(incident, diagnosis=both).to_json())
    assert fix("run", "--apply").exit_code == 0
    assert (here / "train.py").read_text() == AFTER


def test_a_wrong_path_names_the_newest_run(here):
    for path, what in (("nowhere", "nowhere does not exist"), (".", ". holds no incident")):
        made = fix(path)
        assert made.exit_code == 2 and what in made.output
        assert "try: stayfinite run train.py" in made.output
    home = saved(here)
    (here / "stayfinite-runs").mkdir()
    home.parents[1].rename(here / "stayfinite-runs" / "train-1")
    assert "try: stayfinite fix stayfinite-runs/train-1" in fix("nowhere").output


def test_without_a_path_it_reads_the_newest_run(here):
    assert "there is none in stayfinite-runs" in fix().output
    home = saved(here)
    (here / "stayfinite-runs").mkdir()
    home.parents[1].rename(here / "stayfinite-runs" / "train-1")
    shown = fix()
    assert shown.exit_code == 0
    assert "the newest run with an incident: stayfinite-runs/train-1" in shown.output
    assert "+++ b/train.py" in shown.output


def test_a_proved_value_without_a_line_is_to_be_set_by_hand(here):
    home = saved(here)
    incident = Incident.from_json((home / "incident.json").read_text())
    value = replace(incident.diagnosis.fixes[0], title="clip at 0.1", diff=None)
    advice = (Fix(title="and repair x as well", why=""), Fix(title="or clean the data", why=""))
    for fixes, shown in (
        ((value, *advice), "change this by hand: clip at 0.1  [proved]"),
        (advice, "  try: clean the data  [untried]"),
    ):
        made = replace(incident, diagnosis=replace(incident.diagnosis, fixes=fixes))
        (home / "incident.json").write_text(made.to_json())
        result = fix("run")
        assert result.exit_code == 1 and shown in result.output
        assert "no diff was proved" in result.output and "as well" not in result.output


def test_a_file_that_has_changed_since_is_left_alone(here):
    saved(here)
    (here / "train.py").write_text("# mine\n" + BEFORE)
    made = fix("run", "--apply")
    assert made.exit_code == 1 and "is not the file that failed" in made.output
    assert (here / "train.py").read_text() == "# mine\n" + BEFORE


def test_what_was_edited_after_the_change_is_not_undone(here):
    saved(here)
    fix("run", "--apply")
    (here / "train.py").write_text(AFTER + "# more\n")
    made = fix("run", "--undo")
    assert made.exit_code == 1 and "was changed since --apply" in made.output
    assert (here / "train.py").read_text() == AFTER + "# more\n"


@pytest.mark.parametrize("path", ["../outside.py", "a/../../outside.py"])
def test_nothing_outside_of_the_folder_is_opened(here, path):
    room = here / "room"
    room.mkdir()
    outside = here / "outside.py"
    outside.write_text(BEFORE)
    os.chdir(room)
    saved(room, path, file=str(outside))
    made = fix("run", "--apply")
    assert made.exit_code == 1 and "not below this folder" in made.output
    assert outside.read_text() == BEFORE
    assert fix("run", "--apply", "--file", outside).exit_code == 0
    assert outside.read_text() == AFTER


def test_a_link_that_leads_outside_is_refused(here):
    room = here / "room"
    room.mkdir()
    (here / "outside.py").write_text(BEFORE)
    (room / "train.py").symlink_to(here / "outside.py")
    os.chdir(room)
    saved(room)
    assert fix("run", "--apply").exit_code == 1
    assert (here / "outside.py").read_text() == BEFORE


@pytest.mark.parametrize("status", ["untried", "refuted"])
def test_only_what_was_proved_is_written(here, status):
    saved(here, status=status)
    assert fix("run", "--apply").exit_code == 1
    shown = fix("run", "--all", "--apply")
    assert shown.exit_code == 1 and f"[{status}]" in shown.output
    assert (here / "train.py").read_text() == BEFORE


def test_a_diff_that_makes_no_python_is_refused(here):
    saved(here, after="import torch\ny = (\n")
    made = fix("run", "--apply")
    assert made.exit_code == 1 and "no Python" in made.output
    assert (here / "train.py").read_text() == BEFORE


def test_json_carries_the_diff(here):
    saved(here)
    data = json.loads(fix("run", "--json").output)
    assert data["fixes"][0]["status"] == "proved" and data["written"] is None
    assert data["fixes"][0]["diff"].startswith("--- a/train.py")


def test_wrong_usage(here):
    assert fix("nowhere").exit_code == 2
    saved(here)
    assert fix("run", "--apply", "--undo").exit_code == 2


def test_a_run_without_an_incident_needs_no_fix(here):
    run = here / "stayfinite-runs" / "train-1"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text("{}\n")
    for made in (fix(), fix(run)):
        assert made.exit_code == 1 and "nothing to repair" in made.output


def test_failures_of_one_kind_without_a_change_are_reported_once(here):
    home = saved(here)
    first = Incident.from_json((home / "incident.json").read_text())
    bare = replace(first, diagnosis=replace(first.diagnosis, fixes=()))
    for step in (4, 5, 6):
        other = home.parent / f"step{step}"
        other.mkdir()
        again = replace(bare, id=f"step{step}", event=replace(bare.event, step=step))
        (other / "incident.json").write_text(again.to_json())
    shown = fix("run")
    assert shown.output.count("no diff was proved") == 1
    assert "the same happened at steps 5, 6" in shown.output
