"""Records go to JSON and back unchanged, and nothing but standard JSON is written."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfinite import UsageError
from stayfinite.records import (
    SCHEMA_VERSION,
    Action,
    Candidate,
    Culprit,
    Diagnosis,
    Event,
    Experiment,
    Fix,
    Incident,
    Link,
    Location,
    Operand,
    Proof,
    RankPart,
    StepRecord,
    TensorStats,
    from_plain,
    to_plain,
)

NAN, INF = math.nan, math.inf
STATS = TensorStats(
    shape=(2, 3), dtype="float32", num_elements=6, num_nan=1, num_posinf=2, num_neginf=3,
    num_zero=1, num_subnormal=1, min=-1.5, max=2.5, mean=0.1, abs_max=2.5, headroom_bits=126.7,
    first_bad=(0, 1),
)  # fmt: skip
OPERAND = Operand(name="self", stats=STATS, value=None, label="batch[0]", stats_at_bad=STATS)
LINK = Link(
    op="aten.log", role="birth", direction="backward", module="a.b", module_type="Linear",
    file="/x.py", line=3, source="y = x.log()", function="forward", library_file="/lib.py",
    library_line=9, library_source="z", kernel="aten.mul", inputs=(OPERAND,), outputs=(OPERAND,),
    facts={"rows_all_neginf": 2.0, "huge": INF}, label="batch[0]",
)  # fmt: skip
CULPRIT = Culprit(file="/x.py", line=3, what="SGD is made here", source="SGD()", function="f")
RECORDS = [
    STATS,
    OPERAND,
    LINK,
    StepRecord(step=1, loss=-INF, grad_norm=INF, lr=(0.1, INF), scale=2.0),
    Event(step=2, phase="loss", value=-INF, loss=INF, lr=(1e-3,), name="w", noticed_at_step=4),
    Location(op="aten.log", chain=(LINK, LINK), note="n", culprit=CULPRIT),
    Experiment(name="fp32", changed="precision", outcome="finite", duration_ms=INF),
    Fix(title="t", why="w", status="proved", file="f", line=1, before="a", after="b",
        diff="d", proof=Proof(is_step_finite=True, largest_change=INF), remedy="r", file_sha256="0"),
    Proof(is_step_finite=True, num_healthy=3, largest_change=1e-7, num_after=6, note="n"),
    Candidate(cause="log_of_zero", confidence=0.5, reason="r"),
    Diagnosis(
        cause="log_of_zero", confidence=0.9, evidence=("a",), fixes=(Fix(title="t", why="w"),),
        experiments=(Experiment(name="a", changed="b", outcome="finite"),),
        candidates=(Candidate(cause="c", confidence=0.1, reason="r"),),
        samples=(1, 2), dataset_indices=(7, 8),
    ),
    Action(kind="rolled_back", detail="d", restored_step=3),
    CULPRIT,
    RankPart(rank=3, role="began", loss=INF, indices=(4, 9), place="stage 1"),
]  # fmt: skip
INCIDENT = Incident(
    id="i", event=RECORDS[4], location=RECORDS[5], diagnosis=RECORDS[10], action=RECORDS[11],
    history=(RECORDS[3],), environment={"torch": "2"}, created="now", path="/p",
)  # fmt: skip


def strictly(text):
    """As a reader who knows only standard JSON."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("record", [*RECORDS, INCIDENT], ids=lambda r: type(r).__name__)
def test_every_record_goes_through_json_unchanged(record):
    text = json.dumps(to_plain(record), allow_nan=False)
    assert from_plain(type(record), strictly(text)) == record


def test_every_record_is_tried():
    import stayfinite.records as module

    kinds = {c for c in vars(module).values() if dataclasses.is_dataclass(c)}
    assert {type(r) for r in [*RECORDS, INCIDENT]} == kinds


def test_nan_survives():
    event = Event(step=0, phase="loss", value=NAN, lr=(NAN,))
    back = Incident.from_json(Incident(id="a", event=event).to_json()).event
    assert math.isnan(back.value)
    assert math.isnan(back.lr[0])


def test_facts_that_are_not_finite_come_back_as_numbers():
    incident = Incident(
        id="a",
        event=Event(step=0, phase="loss"),
        location=Location(chain=(Link(op="o", role="birth", facts={"peak": INF, "n": 1.0}),)),
    )
    assert Incident.from_json(incident.to_json()) == incident


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_any_number_goes_through(a, b):
    incident = Incident(id="a", event=Event(step=0, phase="loss", value=a, lr=(b, a)))
    strictly(incident.to_json())
    assert Incident.from_json(incident.to_json()) == incident


def test_incident_json_is_standard_and_says_what_it_is():
    data = strictly(INCIDENT.to_json())
    assert (data["kind"], data["schema"]) == ("stayfinite.incident", SCHEMA_VERSION)
    assert data["event"]["value"] == "-inf"
    assert data["history"][0]["grad_norm"] == "inf"
    assert "\n" not in INCIDENT.to_json(indent=None)
    assert Incident.from_json(INCIDENT.to_json(indent=None)) == INCIDENT


def test_missing_keys_have_defaults():
    text = json.dumps(
        {"kind": "stayfinite.incident", "id": "a", "event": {"step": 1, "phase": "data"}}
    )
    assert Incident.from_json(text) == Incident(id="a", event=Event(step=1, phase="data"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an incident: Expecting property name enclosed in double quotes"),
        ("", "not an incident: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "not an incident: expected an object with kind 'stayfinite.incident'"),
        ('{"kind": "x"}', "not an incident: expected an object with kind 'stayfinite.incident'"),
        (
            '{"kind": "stayfinite.incident", "schema": 99}',
            "incident has schema 99, this version reads up to 3; upgrade stayfinite",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", "event": {}, "zeta": 1, "alpha": 2}',
            "Incident: unknown keys alpha, zeta",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", "event": {"step": 1, "phase": "x", "b": 2}}',
            "Event: unknown keys b",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", "event": 3}',
            "Event: expected an object, got int",
        ),
        ('{"kind": "stayfinite.incident"}', "Incident: missing keys id, event"),
        (
            '{"kind": "stayfinite.incident", "id": "a", "event": {"step": 1}}',
            "Event: missing keys phase",
        ),
        (
            '{"kind": "stayfinite.incident", "schema": "new", "id": "a", '
            '"event": {"step": 1, "phase": "x"}}',
            "not an incident: `schema` must be a number, got 'new'",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", '
            '"event": {"step": 1, "phase": "x", "value": "many"}}',
            "Event: `value` must be a number, got 'many'",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", '
            '"event": {"step": 1, "phase": "x", "lr": 3}}',
            "Event: `lr` must be a list, got 3",
        ),
        (
            '{"kind": "stayfinite.incident", "id": "a", "event": {"step": "x", "phase": "y"}}',
            "Event: `step` must be a whole number, got 'x'",
        ),
        (
            '{"kind": "stayfinite.incident", "id": 7, "event": {"step": 1, "phase": "y"}}',
            "Incident: `id` must be text, got 7",
        ),
    ],
)
def test_what_is_no_incident_is_rejected_with_the_reason(text, message):
    with pytest.raises(UsageError) as caught:
        Incident.from_json(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_records_cannot_be_changed(record):
    name = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, None)


def test_stats_count_what_is_not_finite():
    assert STATS.num_nonfinite == 6
    assert not STATS.is_finite
    assert TensorStats(shape=(), dtype="float32").is_finite


def test_an_incident_of_the_first_schema_is_read_and_its_verified_fixes_are_untried():
    old = Incident(id="i", event=Event(step=1, phase="loss"), diagnosis=Diagnosis(cause="c"))
    data = json.loads(old.to_json())
    data["schema"] = 1
    data["diagnosis"]["fixes"] = [
        {"title": "t", "why": "w", "status": "verified"},
        {"title": "t", "why": "w", "status": "refuted"},
    ]
    found = Incident.from_json(json.dumps(data))
    assert [f.status for f in found.diagnosis.fixes] == ["untried", "refuted"]
    assert found.schema == SCHEMA_VERSION
