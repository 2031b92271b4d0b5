"""The picture of a comparison."""

from stayfinite.report.diff_page import bars, render_diff


def layer(**changes):
    return {"layer": "fc", "num_changed": 1, "relative_change": 0.01, "usual": 0.01, "growth": 0.0,
            "angle": 1.0, **changes}  # fmt: skip


def test_bars_are_longer_for_larger_changes_and_red_for_unusual_ones():
    small, large, broken, alone = bars(
        [layer(relative_change=1e-4), layer(relative_change=0.5), layer(relative_change=None, num_nonfinite_b=7),
         layer(usual=None)]
    )  # fmt: skip
    assert 0 < small.width < large.width < 460 and small.mark == large.mark
    assert [b.kind for b in (small, large, broken, alone)] == [
        "usual",
        "unusual",
        "broken",
        "usual",
    ]
    assert alone.mark is None and broken.label == "non-finite: 0 in A, 7 in B"


def test_an_empty_comparison_is_a_page_too():
    page = render_diff({"a": "x", "b": "y", "tensors": [], "layers": [], "usual_source": ""})
    assert "No layer changed" in page


def test_the_number_of_bars_is_bounded():
    page = render_diff(
        {"a": "x", "b": "y", "tensors": [], "layers": [layer()] * 300, "usual_source": ""}
    )
    assert page.count("<rect") == 200 and "100 more layers changed" in page
