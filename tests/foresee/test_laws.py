"""What has held in every row that was seen, and which batches break it."""

import pytest
import torch

from stayfinite.foresee.search.laws import laws
from stayfinite.foresee.search.parts import parts_of


def broken(batches, batch):
    return any(law.is_broken_by(batch) for law in laws(parts_of(batches), batches))


MASKS = [torch.rand(8, 6).argsort(1) < 2 for _ in range(3)]
UNIT = [torch.nn.functional.normalize(torch.randn(8, 24), dim=1) for _ in range(3)]
SCORES = [(x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True) for x in torch.randn(3, 8, 24)]
PLAIN = list(torch.randn(3, 8, 24))


@pytest.mark.parametrize(
    ("batches", "change", "is_broken"),
    [
        (MASKS, torch.zeros_like, True),
        (MASKS, lambda t: t.flip(1), False),
        ([m.float() for m in MASKS], torch.zeros_like, True),
        ([torch.rand(8, 6) < 0.5 for _ in range(3)], torch.zeros_like, False),
        (MASKS[:1], torch.zeros_like, False),  # eight rows prove little
        ([m | True for m in MASKS], lambda t: t & MASKS[0], False),  # has not hidden a thing yet
        (UNIT, torch.zeros_like, True),
        (UNIT, lambda t: t.flip(0), False),
        (SCORES, torch.ones_like, True),
        (PLAIN, torch.zeros_like, False),
        (PLAIN, lambda t: 30 * t, False),
    ],
)
def test_rows_of_a_fixed_sum_length_or_spread_keep_it(batches, change, is_broken):
    assert broken(batches, change(batches[0])) == is_broken


@pytest.mark.parametrize(
    ("counts", "is_broken"),
    [
        (torch.tensor([1.0] * 60 + [2.0] * 25 + [3.0] * 11), True),  # only what occurs is stored
        (torch.arange(96) % 4 + 1.0, True),  # ratings
        (torch.tensor([1.0] * 5 + [2.0] * 5 + [float(n) for n in range(3, 89)]), False),
        (torch.tensor([0.0] * 3 + [1.0] * 60 + [2.0] * 33), False),
        (torch.arange(1.0, 97.0), False),
    ],
)
def test_count_is_not_zero_where_many_were_one_and_none_was(counts, is_broken):
    batches = [{"count": c, "next": torch.randn(24)} for c in counts[torch.randperm(96)].split(24)]
    zero = {**batches[0], "count": torch.zeros(24)}
    assert broken(batches, zero) == is_broken


def test_sampler_that_takes_as_many_of_each_class_goes_on_to_do_so():
    def batch(*classes):
        y = torch.tensor(classes).repeat_interleave(3)
        return torch.randn(len(y), 4), y

    even = [batch(0, 1), batch(1, 4), batch(2, 3), batch(0, 4), batch(3, 1)]
    assert broken(even, (torch.randn(6, 4), torch.tensor([0, 0, 0, 0, 0, 1])))
    assert not broken(even, batch(2, 0))
    assert not broken(even, batch(2))  # another size is another question
    uneven = [*even[:4], (torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 1, 1]))]
    assert not broken(uneven, (torch.randn(6, 4), torch.tensor([0, 0, 0, 0, 0, 1])))


def test_sequences_that_begin_with_a_mark_go_on_to_do_so():
    def batch():
        ids = torch.randint(3, 50, (8, 9))
        ids[:, 0] = 1
        ids[torch.arange(9) >= torch.randint(3, 10, (8, 1))] = 0
        return {"ids": ids, "score": torch.randn(8)}

    batches = [batch() for _ in range(4)]
    ids = batches[0]["ids"]
    assert broken(batches, {"ids": torch.zeros_like(ids)})
    assert not broken(batches, {"ids": torch.where(torch.arange(9) > 0, 0, ids)})
    free = [{**b, "ids": torch.randint(1, 50, (8, 9))} for b in batches]
    assert not broken(free, batches[0])
