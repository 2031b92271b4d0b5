"""The ranks of a run side by side: the slow one is found by its own time, whatever the others wait in."""

import json

import pytest

from stayfinite.report.rank_rows import RankRow, rank_rows, story_of_ranks


def rows(folder, *times, timed=50):
    """One rank for each (between, forward) in ms; each step takes 100 ms on all of them."""
    (folder / "ranks").mkdir()
    for rank, (between, forward) in enumerate(times):
        data = {
            "kind": "stayfinite.rank", "rank": rank, "host": "here", "steps": timed + 1, "timed": timed,
            "seconds": 0.1 * timed, "between": 1e-3 * between * timed, "forward": 1e-3 * forward * timed,
        }  # fmt: skip
        (folder / "ranks" / f"rank{rank}.json").write_text(json.dumps(data))
    return rank_rows(folder, [])


@pytest.mark.parametrize(
    ("times", "late"),
    [
        ([(5, 20), (7, 21), (6, 19)], []),
        ([(5, 20), (65, 21), (6, 19)], [1]),  # its data come late
        ([(5, 20), (5, 90), (6, 19)], [1]),  # its forward is slow
        ([(5, 80), (65, 20)], [1]),  # sharded: the other one waits for it in the forward
        ([(5, 0), (5, 80)], []),  # stages of a pipeline: only the last one has a loss
        ([(60, 20), (61, 20), (5, 20)], [0, 1]),
    ],
)
def test_the_rank_that_the_others_wait_for(tmp_path, times, late):
    found = rows(tmp_path, *times)
    assert [r.rank for r in found if r.is_late] == late
    assert any("the other ranks wait for" in text for text in story_of_ranks(found)) == bool(late)


def test_where_all_began_is_said_once():
    rows = [RankRow(r, began=2) for r in range(8)]
    assert story_of_ranks(rows) == ["2 of 2 incidents began at each rank"]


def test_a_few_steps_say_nothing_about_it(tmp_path):
    assert not any(r.is_late for r in rows(tmp_path, (5, 20), (65, 20), timed=3))


def test_an_average_step_in_its_parts(tmp_path):
    one, _ = rows(tmp_path, (5, 20), (7, 21))
    assert one.times_ms == pytest.approx((5, 20, 75))


@pytest.mark.parametrize(
    "corrupted",
    [{"timed": -1}, {"seconds": "1"}, {"between": None}, {"forward": float("nan")}, {"rank": "0"}],
)
def test_a_file_that_nobody_has_written_like_that_is_left_out(tmp_path, corrupted):
    rows(tmp_path, (5, 20), (7, 21), (6, 20))
    file = tmp_path / "ranks" / "rank1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | corrupted))
    assert [r.rank for r in rank_rows(tmp_path, [])] == [0, 2]


def test_a_rank_that_has_timed_nothing_has_no_times(tmp_path):
    (one, *_) = rows(tmp_path, (5, 20), (7, 21), timed=0)
    assert one.times_ms is None and not one.is_late
