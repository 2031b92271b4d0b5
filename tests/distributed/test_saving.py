"""One decision for all ranks about a checkpoint, and going on from the last good one with other ranks."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_corrupt_part_of_one_rank_holds_the_checkpoint_of_all_back(crew, tmp_path, how):
    run = crew("dcp_saves", module="saving", how=how, home=str(tmp_path))
    assert [r["refused"] for r in run.ranks] == [[[], [], ["step_2.nonfinite"]]] * 2
    assert [r["gate"] for r in run.ranks] == ["step_1"] * 2
    assert [r["scan"] for r in run.ranks] == ["step_1"] * 2
    for world, kind in ((1, "plain"), (3, "fsdp")):
        more = crew("resumed", module="saving", world=world, kind=kind, home=str(tmp_path))
        assert [r["from"] for r in more.ranks] == ["step_1"] * world
        assert all(r["is_same"] for r in more.ranks)


def test_the_whole_state_that_rank_0_writes_is_held_back_for_a_corrupt_part_of_another(
    crew, tmp_path
):
    run = crew("full_saves", module="saving", home=str(tmp_path))
    assert [r["refused"] for r in run.ranks] == [["step_1.nonfinite.pt"], []]
    assert [r["scan"] for r in run.ranks] == ["step_0.pt"] * 2


@pytest.mark.parametrize("name", ["step_{step}/rank{rank}.pt", "model_rank_{rank}_step{step}.pt"])
@pytest.mark.parametrize(("bad_at", "missing_at", "good"), [(2, 9, 1), (9, 3, 2), (9, 9, 3)])
def test_files_that_each_rank_writes_count_together(crew, tmp_path, name, bad_at, missing_at, good):
    """One decision for all: where the part of one rank is bad or missing, the save before it is named, on each
    rank its own file."""
    job = {
        "name": name,
        "bad_at": bad_at,
        "missing_at": missing_at,
        "home": str(tmp_path / "rank7_of_them"),
    }
    run = crew("own_saves", module="saving", **job)
    assert [r["scan"] for r in run.ranks] == [name.format(step=good, rank=r) for r in range(2)]
