"""The campaign of ranks that are killed, throw, stop or end early: a small one."""

import pytest
from tests.launch import ROOT, forked


@pytest.mark.slow
def test_nobody_hangs_and_nothing_corrupt_is_saved():
    """In a process of its own, that has imported torch before it forks the ranks."""
    done = forked(["-m", "tests.campaign_ranks", "--count", "6", "--seed", "3"], ROOT)
    assert done.code == 0, done.out + done.err
    assert "6 trainings" in done.out and "0 wrong" in done.out


@pytest.mark.slow
def test_faults_are_on_several_ranks_what_they_are_on_one():
    args = ["--world", "2", "--kinds", "accumulation", "--faults", "gradient", "--policies", "skip"]
    done = forked(["-m", "tests.distributed.table", *args], ROOT)
    assert done.code == 0, done.out + done.err
    assert "1 trainings on 2 ranks, 0 wrong" in done.out
