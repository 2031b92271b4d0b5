"""On the terminal an incident is told in full once; its repetitions are counted, not shouted."""

from stayfinite.records import Event, Incident, Location
from stayfinite.report import terminal


def test_the_same_incident_again_and_again_is_no_flood(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_told", type(terminal._told)())
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
