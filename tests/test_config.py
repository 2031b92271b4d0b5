"""Settings: every problem at once, in words that name the value and the way out."""

import dataclasses
import math

import pytest

from stayfinite import Settings, UsageError

KNOWN = ", ".join(sorted(f.name for f in dataclasses.fields(Settings)))


def message_of(values):
    with pytest.raises(UsageError) as caught:
        Settings.from_mapping(values)
    return str(caught.value)


def test_defaults_are_valid_and_a_mapping_may_be_empty():
    assert Settings.from_mapping({}) == Settings()


def test_a_mapping_gives_the_same_settings():
    values = {"budget": 0.5, "deferred": True, "history": 10, "max_batches": 3}
    assert Settings.from_mapping(values) == Settings(**values)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("budget", 0, "`budget` must be above 0 and at most 1, got 0"),
        ("budget", 1.5, "`budget` must be above 0 and at most 1, got 1.5"),
        ("budget", math.nan, "`budget` must be above 0 and at most 1, got nan"),
        ("budget", "much", "`budget` must be a number, got 'much'"),
        ("budget", True, "`budget` must be a number, got True"),
        ("budget", None, "`budget` must be a number, got None"),
        ("snapshot_ram_share", -1, "`snapshot_ram_share` must be above 0 and at most 1, got -1"),
        ("diagnose_seconds", 0.0, "`diagnose_seconds` must be above 0, got 0.0"),
        ("history", 1, "`history` must be at least 2, got 1"),
        ("history", 2.0, "`history` must be a whole number, got 2.0"),
        ("history", False, "`history` must be a whole number, got False"),
        ("max_batches", 0, "`max_batches` must be at least 1, got 0"),
        ("deferred", 1, "`deferred` must be true or false, got 1"),
        ("diagnose", "yes", "`diagnose` must be true or false, got 'yes'"),
        ("budgt", 1, f"unknown setting 'budgt'; known: {KNOWN}"),
    ],
)
def test_one_problem(name, value, problem):
    assert message_of({name: value}) == f"1 problem with the settings:\n  - {problem}"


def test_the_same_words_without_a_mapping():
    with pytest.raises(UsageError) as caught:
        Settings(history=1)
    assert str(caught.value) == message_of({"history": 1})


def test_all_problems_at_once():
    text = message_of({"budget": 2, "history": 0, "nonsense": 1, "deferred": None})
    first, *rest = text.split("\n")
    assert first == "4 problems with the settings:"
    assert rest == [
        f"  - unknown setting 'nonsense'; known: {KNOWN}",
        "  - `budget` must be above 0 and at most 1, got 2",
        "  - `history` must be at least 2, got 0",
        "  - `deferred` must be true or false, got None",
    ]


def test_an_infinite_time_limit_is_a_limit():
    assert Settings(diagnose_seconds=math.inf).diagnose_seconds == math.inf


def test_every_setting_is_documented():
    import inspect

    source = inspect.getsource(Settings)
    for field in dataclasses.fields(Settings):
        after = source.split(f"    {field.name}: ", 1)[1].split("\n", 2)[1]
        assert after.strip().startswith('"""'), f"{field.name} has no word on what it does"
