"""Which runs the ladder makes, and what it concludes; the runs themselves are made up."""

import pytest

from stayfinite.errors import UsageError
from stayfinite.ladder import Plan
from stayfinite.ladder.climb import _Climber
from stayfinite.ladder.records import Outcome, Survey
from stayfinite.ladder.resolve import Resolver
from stayfinite.ladder.values import parse_try

KEYS = "abcd"


class Silent:
    def say(self, text): ...


def run(tmp_path, cure, *, baseline="failed", tries=KEYS, current=0, **plan):
    """A ladder over flags a, b, c, d whose runs survive where `cure` says so."""
    flags = tuple(
        {"strings": [f"--{k}"], "dest": k, "kind": "value", "current": current} for k in KEYS
    )  # fmt: skip
    climber = _Climber(Plan(target="x.py", jobs=2, **plan), Silent(), tmp_path)
    made = []

    def outcomes(sets):
        made.extend("".join(c.key for c in s) for s in sets)
        found = []
        for changes in sets:
            keys = {c.key for c in changes}
            status = "survived" if cure(keys) else "failed"
            if not keys:
                status = baseline
            found.append(Outcome(changes=changes, status=status, step=7, text="t"))
        return found

    climber._outcomes = outcomes
    resolver = Resolver(Survey(flags=flags), ())
    changes = [resolver.resolve(parse_try(f"{k}=1")) for k in tries]
    report = climber.run(resolver, changes)
    return report, made


def cure_of(report):
    return "".join(c.key for c in report.smallest)


def test_single_changes_are_enough_where_one_survives(tmp_path):
    report, made = run(tmp_path, lambda keys: bool(keys & {"b", "d"}))
    assert made == ["", "a", "b", "c", "d"]
    assert cure_of(report) == "b"
    assert [o.label for o in report.survivors] == ["b=1", "d=1"]
    assert (report.failing_step, report.goal, report.exit_code) == (7, 12, 0)


def test_pairs_come_after_all_together(tmp_path):
    report, made = run(tmp_path, lambda keys: keys >= {"b", "c"})
    assert made == ["", "a", "b", "c", "d", "abcd", "ab", "ac", "ad", "bc"]
    assert cure_of(report) == "bc"
    assert report.survivors == ()


def test_three_are_found_by_leaving_out(tmp_path):
    report, made = run(tmp_path, lambda keys: keys >= {"a", "c", "d"})
    assert made[-2:] == ["bcd", "acd"]
    assert cure_of(report) == "acd"


def test_two_that_only_help_together_need_one_run_more(tmp_path):
    report, made = run(tmp_path, lambda keys: len(keys) == 2, tries="ab")
    assert made == ["", "a", "b", "ab"]
    assert cure_of(report) == "ab"


def test_none_survives(tmp_path):
    report, made = run(tmp_path, lambda keys: False)
    assert made == ["", "a", "b", "c", "d", "abcd"]
    assert report.exit_code == 1
    assert run(tmp_path, lambda keys: False, tries="a")[1] == ["", "a"]


def test_a_change_that_changes_nothing_is_not_run(tmp_path):
    report, made = run(tmp_path, lambda keys: keys == {"b"}, tries=["a", "b"], current="1")
    assert made == [""]
    assert [r.status for r in report.rungs] == ["idle", "idle"]
    assert report.rungs[0].text == "it is 1 already"
    assert report.exit_code == 1


def test_without_a_failure_nothing_is_tried(tmp_path):
    report, made = run(tmp_path, lambda keys: True, baseline="survived", until_step=9)
    assert made == [""]
    assert (report.failing_step, report.goal, report.exit_code) == (None, None, 0)


def test_a_known_step_has_the_unchanged_run_as_a_control(tmp_path):
    report, made = run(tmp_path, lambda keys: keys == {"a"}, failing_step=7, margin=2)
    assert made == ["", "a", "b", "c", "d"]
    assert (report.goal, report.notes, cure_of(report)) == (9, (), "a")
    report, _ = run(tmp_path, lambda keys: True, baseline="survived", failing_step=7)
    assert report.exit_code == 0
    assert cure_of(report) == ""
    assert "does not fail again here" in report.notes[0]
    report, _ = run(tmp_path, lambda keys: keys == {"a"}, failing_step=5)
    assert report.notes == ("the unchanged run fails at step 7 here, not at step 5",)


def test_an_unchanged_run_that_crashes_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="ends with an error before anything non-finite: t"):
        run(tmp_path, lambda keys: True, baseline="crashed")
