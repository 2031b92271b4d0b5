"""Rules of one's own: a bad one is rejected at once, and the message says why."""

import pytest

import stayfinite.investigate.experiments  # noqa: F401  (each registers itself)
from stayfinite import UsageError, codes
from stayfinite.diagnose import (
    Evidence,
    Finding,
    all_rules,
    register_rule,
    unregister_rule,
)
from stayfinite.diagnose.rank import conclude, consider, wanted_experiments
from stayfinite.records import Event, Experiment, Fix, Location


def evidence(**results):
    e = Evidence(event=Event(step=0, phase="loss"), location=Location())
    for name, outcome in results.items():
        e = e.with_result(name, outcome)
    return e


def test_every_cause_of_the_catalogue_has_a_rule():
    assert {r.cause for r in all_rules()} == set(codes.CAUSES)


@pytest.mark.parametrize(
    ("cause", "applies", "message"),
    [
        ("bad_luck", lambda e: None, "unknown cause; known: low_precision_overflow"),
        ("log_of_zero", 3, "must be callable, got int"),
        ("log_of_zero", lambda: None, r"takes one argument, the evidence.*got applies\(\)"),
        ("log_of_zero", lambda a, b: None, r"got applies\(a, b\)"),
    ],
)
def test_a_bad_rule_is_rejected_when_registered(cause, applies, message):
    before = all_rules()
    with pytest.raises(UsageError, match=message):
        register_rule(cause, applies)
    assert all_rules() == before


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("log", "must return a Finding or None, got str"),
        (Finding(confidence=1.5, sentence="x"), "confidence must be from 0 to 1, got 1.5"),
        (
            Finding(confidence=0.5, sentence="x", wants=("magic",)),
            "asks for unknown experiments magic; known: clipped",
        ),
    ],
)
def test_a_bad_finding_names_its_rule(returned, message):
    added = register_rule("log_of_zero", lambda e: returned, name="mine")
    try:
        with pytest.raises(UsageError, match=f"the rule 'mine' for 'log_of_zero'.*{message}"):
            consider(evidence())
        with pytest.raises(UsageError, match="already is a rule 'mine'"):
            register_rule("log_of_zero", lambda e: None, name="mine")
    finally:
        unregister_rule(added)
    with pytest.raises(UsageError, match="is not registered"):
        unregister_rule(added)


def finding(confidence, proof=None, **more):
    return lambda e: Finding(confidence=confidence, sentence="s", proof=proof, **more)


@pytest.fixture
def two_causes():
    one = register_rule("lr_divergence", finding(0.9, "smaller_lr"), name="one")
    other = register_rule("exp_overflow", finding(0.6, "higher_precision"), name="other")
    yield [one, other]
    unregister_rule(one)
    unregister_rule(other)


def test_a_verified_cause_outranks_a_guess_and_a_refuted_one_falls(two_causes):
    def first(**results):
        return [(r.cause, r.status) for r in consider(evidence(**results), two_causes)]

    assert first() == [("lr_divergence", "untried"), ("exp_overflow", "untried")]
    assert first(smaller_lr="nonfinite")[0] == ("exp_overflow", "untried")
    assert first(smaller_lr="nonfinite", higher_precision="finite") == [
        ("exp_overflow", "verified"),
        ("lr_divergence", "refuted"),
    ]
    assert first(smaller_lr="not_run")[0] == ("lr_divergence", "untried")


def test_what_was_tried_is_not_wanted_again(two_causes):
    e = evidence(smaller_lr="finite")
    assert wanted_experiments(consider(evidence(), two_causes), evidence()) == [
        "smaller_lr",
        "higher_precision",
    ]
    assert "smaller_lr" not in wanted_experiments(consider(e, two_causes), e)


def test_an_experiment_refutes_advice_and_never_proves_it():
    fixes = (
        Fix(title="a", why="w", experiment="clipped"),
        Fix(title="b", why="w", experiment="smaller_lr"),
        Fix(title="c", why="w"),
    )
    added = register_rule("lr_divergence", finding(0.9, fixes=fixes), name="fixes")
    try:
        e = evidence(clipped="nonfinite", smaller_lr="finite")
        tried = [Experiment(name="clipped", changed="gradients clipped", outcome="nonfinite")]
        d = conclude(consider(e, [added]), e, tried)
    finally:
        unregister_rule(added)
    assert [(f.title, f.status) for f in d.fixes] == [
        ("b", "untried"),
        ("c", "untried"),
        ("a", "refuted"),
    ]
    assert d.cause == "lr_divergence" and len(d.experiments) == 1


def test_nothing_known_is_said_plainly():
    d = conclude([], evidence(), [])
    assert d.cause is None and d.confidence == 0.0


def test_advice_is_not_refuted_by_another_way_of_keeping_the_line_finite():
    fixes = (
        Fix(title="bound it", why="w", experiment="patched_operator"),
        Fix(title="rewrite it", why="w", experiment="patched_operator", before="a", after="b"),
        Fix(title="or widen it", why="w"),
    )
    added = register_rule("exp_overflow", finding(0.9, fixes=fixes), name="advice")
    try:
        e = evidence(patched_operator="nonfinite")
        made = conclude(consider(e, [added]), e, [])
    finally:
        unregister_rule(added)
    assert [(f.title, f.status) for f in made.fixes] == [
        ("bound it", "untried"),
        ("rewrite it", "untried"),
        ("or widen it", "untried"),
    ]
