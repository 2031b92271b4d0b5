"""docs/GUIDES.md: every line of the guides has a test, and the tests are there."""

import re
from pathlib import Path

import torch
from benchmarks import guides

from stayfinite.preflight.environment.facts import Facts, gather
from stayfinite.preflight.environment.group import before_any_model, judge

TESTS = Path(__file__).parent
DOC = (TESTS.parent / "docs" / "GUIDES.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOC.partition("## The whole way")[0].splitlines()
    if line.startswith("|") and "---" not in line and "the guide's line" not in line
]


def test_every_line_names_a_test_that_is_there():
    assert len(ROWS) > 90
    for line, here, test in ROWS:
        assert line and here, line
        if test == "–":
            assert "GPU" in line
            continue
        file, name = re.fullmatch(r"`([\w/.]+)::(\w+)`", test).groups()
        source = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {name}(" in source, f"{line}: there is no {test}"


def test_every_guide_has_its_table():
    assert re.findall(r"^## (\d{3})", DOC, re.MULTILINE) == ["000", "001", "002", "003", "004"]


def of(findings, check):
    return [f.status for f in findings if f.check == f"environment/{check}"]


def test_cudnn_benchmark_and_determinism_are_judged_and_really_read(monkeypatch):
    """The switches of this process are what is judged, not what somebody assumes."""
    assert of(judge(Facts()), "determinism") == of(judge(Facts()), "benchmark") == ["pass"]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True)
    try:
        seen = gather(before_any_model())
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen.cudnn_benchmark and seen.is_deterministic
    (found,) = [f for f in judge(seen) if f.check == "environment/determinism"]
    assert (found.status, found.action) == ("warn", "torch.backends.cudnn.benchmark = False")
    shapes = Facts(cudnn_benchmark=True, has_varying_shapes=True, model_device="cuda")
    assert of(judge(shapes), "benchmark") == ["warn"]
    on_gpu = Facts(is_deterministic=True, model_device="cuda")
    assert of(judge(on_gpu), "determinism") == ["fail"]  # no CUBLAS_WORKSPACE_CONFIG


def test_the_table_of_the_examples_shows_what_fell_short():
    """`python -m benchmarks.guides` itself takes an hour: here are two rows that it could have found."""
    good = {
        "repaired": {"figure": 0.8, "baseline": 0.3},
        "plain": {"is_broken": True},
        "check": {"verdict": "do not start", "at_line": "fail"},
        "check_repaired": {"verdict": "ready"},
        "fix": {"figures": [0.2, 0.76], "step": 5, "op": "aten.log"},
    }
    bad = good | {
        "plain": {"is_broken": False},
        "check": {"verdict": "ready", "at_line": ""},
        "fix": {"figures": [], "step": None, "op": None},
        "conservative": {"metric": 0.6},
    }
    first, second = guides.table({"a, 1": good, "a, 2": bad}).splitlines()[2:]
    assert first == (
        "| a, 1 | NaN or Inf | fail at the line | ready | 5, aten.log | 0.800 (0.300) | 0.760 (95%) "
        "| not needed |"
    )
    assert (
        "**finite**" in second and "**not so**" in second and "conservative: 0.600 (75%)" in second
    )
    assert guides.figure(guides.METRICS["temi"], "accuracy 0.5  NMI 1\naccuracy 0.9  NMI 1") == 0.9
