"""No operator that is called safe ever gives something that is not finite: a sample of the campaign.

python -m tests.foresee.soundness --count 20000
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.foresee.programs import Program, Step, make_program
from tests.foresee.soundness import choose_by, describe, examine


@settings(max_examples=25)
@given(st.data())
def test_random_programs_against_brute_force(data):
    program = make_program(lambda n: data.draw(st.integers(0, n - 1)))
    wrong, _ = examine(program, seed=0, num_samples=6)
    assert not wrong, describe(wrong[0])


@pytest.mark.parametrize("seed", [3, 47, 1007, 4040, 4223, 7616, 20465, 500337, 502893])
def test_programs_that_were_once_judged_wrongly(seed):
    wrong, _ = examine(make_program(choose_by(random.Random(seed))), seed)
    assert not wrong, describe(wrong[0])


def test_brute_force_finds_what_fails():
    """The test can fail: a program that breaks does so among the samples, and is not called safe."""
    program = Program(torch.float32, ((0.0, 1.0),), (0, 1), (0, 3), (Step("unary", 1, 0, 0),))
    wrong, counts = examine(program, seed=0)
    assert not wrong
    assert counts["failing runs"] > 0
    assert counts["can_fail"] > 0
