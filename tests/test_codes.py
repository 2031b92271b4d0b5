"""The registry of codes."""

import pytest

from stayfinite import UsageError, codes

DESIGN = [
    "low_precision_overflow",
    "low_precision_underflow",
    "log_of_zero",
    "domain_error",
    "zero_denominator",
    "empty_reduction",
    "singular_gradient",
    "masked_branch_leak",
    "fully_masked_row",
    "exp_overflow",
    "infeasible_target",
    "degenerate_linalg",
    "bad_input_data",
    "bad_preprocessing",
    "uninitialized_memory",
    "bad_initialization",
    "lr_divergence",
    "exploding_gradient",
    "optimizer_denominator",
    "bad_schedule",
    "loss_scaling",
    "corrupt_checkpoint",
    "resume_mismatch",
    "hardware_or_nondeterminism",
]


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(codes.registry, "_REGISTRY", dict(codes.registry._REGISTRY))


def test_the_causes_are_the_catalogue():
    assert sorted(codes.CAUSES) == sorted(DESIGN)
    assert all(codes.lookup(name).kind == "cause" for name in DESIGN)


def test_an_unknown_code_lists_all_that_there_are(registry):
    with pytest.raises(UsageError) as caught:
        codes.lookup("log_of_one")
    known = ", ".join(sorted(c.name for c in codes.all_codes()))
    assert str(caught.value) == f"unknown code 'log_of_one'; known: {known}"


def test_a_new_code_is_found_under_its_kind(registry):
    code = codes.register("my_rule", "lint", "what it means")
    assert codes.lookup("my_rule") is code
    assert code in codes.all_codes("lint")
    assert code not in codes.all_codes("cause")


@pytest.mark.parametrize(
    ("name", "definition", "message"),
    [
        ("", "x", "a code is one word without spaces, got ''"),
        ("two words", "x", "a code is one word without spaces, got 'two words'"),
        (" padded", "x", "a code is one word without spaces, got ' padded'"),
        ("fine", "  ", "code 'fine' needs a definition"),
        (
            "domain_error",
            "again",
            "code 'domain_error' is already registered: "
            "a function outside its domain (log or sqrt of a negative number)",
        ),
    ],
)
def test_a_bad_registration_is_rejected_at_once(registry, name, definition, message):
    with pytest.raises(UsageError) as caught:
        codes.register(name, "lint", definition)
    assert str(caught.value) == message
