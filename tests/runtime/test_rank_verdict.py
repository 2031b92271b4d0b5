"""Ranks that have seen something bad find out whether all have, and hear the same answer."""

import threading

import pytest
import torch.distributed as dist

from stayfinite.runtime.ranks import verdict as rank_verdict


class Group:
    group_name = "0"
    num_collectives = 7

    def _get_sequence_number_for_group(self) -> int:
        return self.num_collectives


@pytest.fixture
def group(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(rank_verdict, "_store", lambda: store)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    return Group()


def ask(group: Group, num: int, seconds: float) -> list[bool]:
    answers: list[bool] = []

    def one() -> None:
        answers.append(rank_verdict.is_seen_by_all(group, seconds))

    threads = [threading.Thread(target=one) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_all_have_seen_it(group):
    assert rank_verdict.can_gather(group)
    assert ask(group, 3, seconds=60.0) == [True] * 3


def test_one_that_nobody_joins_is_apart_and_so_is_who_comes_too_late(group):
    assert ask(group, 1, seconds=0.05) == [False]
    assert ask(group, 2, seconds=60.0) == [False, False]


def test_the_next_place_is_asked_about_anew(group):
    assert ask(group, 1, seconds=0.05) == [False]
    group.num_collectives += 1
    assert ask(group, 3, seconds=60.0) == [True] * 3


def test_a_store_that_is_gone_counts_as_apart(group, monkeypatch):
    class Gone:
        def add(self, key, number):
            raise dist.DistStoreError("connection reset")

    monkeypatch.setattr(rank_verdict, "_store", Gone)
    assert not rank_verdict.is_seen_by_all(group, 1.0)


def test_a_group_that_counts_nothing_cannot_be_asked(group):
    group.num_collectives = -1
    assert not rank_verdict.can_gather(group)
