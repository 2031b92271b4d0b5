"""On the terminal an incident is printed in full once; its repetitions are counted, not shouted."""

from stayfinite.records import Diagnosis, Event, Fix, Incident, Location
from stayfinite.report import terminal


def test_the_same_incident_again_and_again_is_no_flood(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_num_reported", type(terminal._num_reported)())
    for step in range(41):
        terminal.say_incident(
            Incident(
                id=f"i{step}",
                event=Event(step=step, phase="loss", symptom="loss", message="the loss is nan"),
                location=Location(op="aten.log", file="train.py", line=7),
            )
        )
    lines = [t for t in capsys.readouterr().err.splitlines() if "as before" in t]
    assert [t.endswith("(as before)") for t in lines] == [True] * 3 + [False] * 4
    assert [t.split("before, ")[1] for t in lines[3:]] == [
        f"{n} times by now)" for n in (4, 8, 16, 32)
    ]


def test_the_same_warning_again_and_again_is_no_flood(capsys):
    for count in range(1, 41):
        event = Event(step=count, kind="spike", phase="loss", message="the loss is 7")
        terminal.say_warning(event, count)
    lines = capsys.readouterr().err.splitlines()
    assert [int(t.split()[2].rstrip(":")) for t in lines] == [1, 2, 3, 4, 8, 16, 32]
    assert lines[0] == "stayfinite: step 1: warning: the loss is 7"
    assert lines[-1] == "stayfinite: step 32: warning: the loss is 7 (32 such warnings by now)"


def test_the_summary_names_the_next_command(capsys, tmp_path):
    event = Event(step=3, phase="loss", message="the loss is nan")
    plain = Incident(id="a", event=event)
    fix = Fix(title="a floor", why="", status="proved", diff="--- a/t.py")
    proved = Incident(id="b", event=event, diagnosis=Diagnosis(fixes=(fix,)))
    for incidents, command in (([plain], "report"), ([plain, proved], "fix")):
        terminal.say_summary(incidents, "9 steps", tmp_path)
        assert f"next: stayfinite {command} {tmp_path}" in capsys.readouterr().err
