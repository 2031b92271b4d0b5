"""What the guides prescribe, beside what this project does: the claims of docs/REMEDIES_COMPARED.md."""

import math

from benchmarks import guide_remedies as remedies


def by_way(rows):
    return {row["way"].partition(":")[0]: row for row in rows}


def test_the_epsilon_of_the_guides_is_zero_in_half_precision():
    guide, fitting, ours = remedies.eps_in_half()
    assert guide["at -30"] == -math.inf and math.isnan(guide["gradient at -30"])
    assert math.isfinite(fitting["at -30"]) and fitting["gradient at -30"] == 0  # finite, and wrong
    assert (ours["at -30"], ours["gradient at -30"]) == (-30, 1)


def test_a_clamped_loss_has_no_way_back():
    rows = by_way(remedies.clamped_loss())
    assert rows["guide"]["loss after 200 steps"] == rows["guide"]["first loss"] > 100
    assert rows["ours"]["loss after 200 steps"] < 1e-3


def test_zeroed_gradients_still_move_the_weights():
    rows = by_way(remedies.zeroed_gradients())
    assert float(rows["guide"]["weights moved in 50 bad steps"].rstrip("%")) > 5
    assert rows["ours"]["weights moved in 50 bad steps"] == "0.0%"


def test_isnan_of_the_norm_lets_infinity_pass():
    first, second, ours = remedies.clip_before_check()
    assert first["weights"] == "nan, 10"
    assert second["weights"] == ours["weights"] == "10, 10"


def test_skipping_without_a_budget_is_silent():
    rows = by_way(remedies.skipping_for_ever())
    assert rows["guide"]["steps until somebody knows"] == 1000
    assert rows["ours"]["steps until somebody knows"] == 51


def test_below_a_half_the_uniform_assignment_is_the_best_beta_mi():
    assert [row["the best is"] for row in remedies.low_beta()] == ["sure", "either", "uniform"]


def test_normalized_latents_lose_their_length():
    rows = by_way(remedies.normalized_mse())
    assert rows["guide"]["error of the latents, relative"] > 0.2
    assert rows["ours"]["error of the latents, relative"] < 0.01
