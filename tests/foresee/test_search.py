"""The structured search: which batches are made of real ones, how likely they are, what stays as it was."""

import dataclasses

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from stayfinite.foresee.search.families import candidates
from stayfinite.foresee.search.parts import parts_of
from stayfinite.foresee.search.plausible import between, distance
from stayfinite.runtime.batches import named_tensors

X = torch.randn(6, 8, 3)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
LENGTHS = torch.tensor([3, 8, 5, 4, 8, 7])
MASK = torch.arange(8) < LENGTHS[:, None]
TOKENS = torch.randint(2, 50, (6, 8))


@pytest.mark.parametrize(
    ("batch", "kinds"),
    [
        ((X, Y), ["input", "labels"]),
        ((X, X.sum(1)), ["input", "target"]),
        (X, ["input"]),
        ({"x": X, "mask": MASK, "label": Y}, ["input", "mask", "labels"]),
        ({"ids": TOKENS, "attention_mask": MASK.long()}, ["tokens", "mask"]),
        ((X, LENGTHS, TOKENS, Y), ["input", "lengths", "tokens", "labels"]),
        ((X, MASK.float()), ["input", "mask"]),
    ],
)
def test_parts_of_a_batch_are_recognized(batch, kinds):
    assert [p.kind for p in parts_of([batch])] == kinds


def made(batches, **more):
    found = {}
    for c in candidates(batches, **more):
        try:
            found.setdefault(c.family, []).append((c, c.make()))
        except (ValueError, ZeroDivisionError):
            continue
    return found


def test_only_what_is_said_is_changed_and_the_real_batch_stays_as_it_was():
    before = X.clone()
    found = made([(X, Y)])
    candidate, batch = found["blank"][0]
    assert candidate.level == "possible"
    assert not batch[0][0].any() and torch.equal(batch[0][1:], X[1:]) and batch[1] is Y
    assert torch.equal(found["outlier"][0][1][0][0], X[0] * 10)
    assert torch.equal(X, before)


def test_integers_stay_in_the_range_that_was_seen():
    for family in made([(TOKENS, LENGTHS, Y)]).values():
        for candidate, (tokens, lengths, labels) in family:
            assert set(tokens.unique().tolist()) <= set(TOKENS.unique().tolist())
            assert set(labels.unique().tolist()) <= {0, 1, 2}
            assert int(lengths.max()) <= 8 and (
                int(lengths.min()) >= 3 or "batch[1]" in candidate.what
            )


def levels(batches, family, **more):
    return [c.level for c, _ in made(batches, **more).get(family, [])]


def test_strictly_positive_data_is_not_blanked():
    assert levels([(X.abs() + 1, Y)], "blank") == ["far"]
    assert levels([(X, Y)], "blank") == ["possible"]


def test_blank_samples_that_were_seen_make_one_likely():
    seen = X.clone()
    seen[2] = 0
    candidate, _ = made([(seen, Y)])["blank"][0]
    assert candidate.level == "likely" and candidate.why == "1 of 6 samples seen are like it"


def test_codes_and_distributions_keep_their_structure():
    board = torch.randint(-1, 2, (6, 9)).float()
    found = made([(board, Y)])
    assert "outlier" not in found and {c.level for c, _ in found["constant"]} == {"far"}
    share = torch.softmax(torch.randn(6, 4), 1)
    found = made([(X, share)])
    assert torch.equal(found["certain"][0][1][1][0].sort().values, torch.tensor([0.0, 0, 0, 1]))


def test_permutations_stay_permutations():
    tour = torch.stack([torch.randperm(5) for _ in range(6)])
    for family in made([(X, tour)]).values():
        for _, (_, new) in family:
            assert torch.equal(new.sort(1).values, torch.arange(5).expand(len(new), 5))


def test_mask_that_never_hid_anything_will_not_hide_all_and_keeps_what_a_label_points_at():
    legal = torch.ones(6, 8, dtype=torch.bool)
    found = made([(X, legal, Y)])
    assert [c.level for c, _ in found["mask"]] == ["possible", "far"]
    _, (_, mask, labels) = found["mask-part"][0]
    assert mask[0, labels[0]] and not mask[0].all()


def test_classes_are_made_of_real_samples_and_none_twice():
    x = torch.arange(24.0).reshape(12, 2)
    batches = [(x[:6], torch.tensor([0, 1, 0, 1, 0, 1])), (x[6:], torch.tensor([0, 1, 0, 1, 0, 1]))]
    (candidate, (rows, labels)), *_ = made(batches)["one-class"]
    assert set(labels.tolist()) == {0} and len(rows.unique(dim=0)) == 6
    assert candidate.probability == pytest.approx(0.5**6)


def test_arguments_of_a_call_keep_their_rows():
    found = made([((X,), {})], can_change_rows=False)
    assert "size" not in found and "repeated" not in found and "blank" in found


def test_last_batch_is_certain():
    found = {c.what: c.level for c, _ in made([(X, Y)], num_last=1)["size"]}
    assert found == {
        "the last batch of an epoch (1 sample)": "certain",
        "a batch of 2 samples": "far",
    }


def test_parts_of_varying_size_may_be_empty():
    batches = [(torch.randn(1, 4), torch.rand(n, 4)) for n in (3, 2, 5)]
    found = made(batches)["empty"]
    assert [(b[1].shape[0], c.level) for c, b in found] == [(0, "possible"), (1, "possible")]


def test_what_was_never_nearly_empty_is_not_empty():
    sets = [([torch.randn(n, 4), torch.randn(n + 1, 4)], Y[:2]) for n in (6, 4, 5)]
    assert sorted(levels(sets, "empty")) == ["far", "far", "possible", "possible"]
    counts = torch.randint(7, 30, (6, 9)).float()
    assert set(levels([(X, counts)], "blank")) == {"possible", "far"}
    assert levels([(counts, Y)], "blank") == ["far"]
    assert levels([(counts - 6, Y)], "blank") == ["possible"]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    more: dict


def test_nested_batches_are_changed_where_they_are():
    batch = Batch(X, {"mask": MASK, "y": [Y]})
    _, new = made([batch])["mask"][0]
    assert isinstance(new, Batch) and new.x is X and not new.more["mask"][0].any()
    assert [n for n, _ in named_tensors(new)] == [n for n, _ in named_tensors(batch)]


def test_distance_tells_rows_and_range_and_the_way_between_keeps_whole_numbers():
    far = X.clone()
    far[0] *= 30
    parts = parts_of([(X, Y)])
    found = distance((X, Y), (far, Y), parts, 6)
    assert (found.num_rows, found.total) == (1, 6) and found.beyond > 1
    half, labels = between((X, Y), (far, Y), 0.5)
    assert torch.allclose(half[0], X[0] * 15.5) and labels is Y


def test_parts_that_are_alike_are_tried_the_other_way_round():
    real, fake = X.clamp(-1, 1), 2 * torch.randn(6, 8, 3)
    (plain, (a, b)), (loud, (c, _)) = made([(real, fake)])["swapped"]
    assert (
        torch.equal(a[0], fake[0]) and torch.equal(b[0], real[0]) and torch.equal(a[1:], real[1:])
    )
    assert torch.equal(c[0], 30 * fake[0]) and loud.is_wild and not plain.is_wild
    assert "swapped" not in made([(real, 1000 * fake)])
    assert "swapped" not in made([(real, fake.abs() + 1)])


def test_vector_that_was_never_zero_is_no_blank_target():
    pose, sound = torch.randn(6, 4), torch.randn(6, 40)
    assert levels([(X, pose)], "blank") == ["possible", "far", "far"]
    assert levels([(X, sound)], "blank") == ["possible", "possible", "possible"]


def test_ids_of_one_kind_are_ids_that_were_seen_and_marks_stay():
    texts = torch.cat([torch.full((6, 1), 60), TOKENS], 1)
    for _, (new, _) in made([(texts, Y)])["band"]:
        assert set(new[:, 1:].unique().tolist()) <= set(TOKENS.unique().tolist())
        assert bool((new[:, 0] == 60).all())


def test_hardly_varying_quantity_is_not_three_times_as_large():
    assert "possible" not in levels([(11.5 + 0.1 * X.clamp(-2, 2), Y)], "outlier")
    assert "possible" in levels([(1 + X.abs().clamp(max=1.5), Y)], "outlier")


def test_rare_label_does_not_fill_a_batch():
    common = torch.randint(0, 4, (6, 50))
    rare = (torch.arange(300) % 40 + 1).reshape(6, 50)
    rare[0, 0] = 0
    assert "possible" in levels([(X, common)], "one-label")
    assert set(levels([(X, rare)], "one-label")) == {"far"}


def test_lengths_are_known_where_later_batches_are_longer_than_the_first():
    y = torch.tensor([0, 1, 2])
    batches = [(torch.randn(3, n, 2), torch.tensor([n, 2, n - 1]), y) for n in (5, 9, 7)]
    assert [p.kind for p in parts_of(batches)] == ["input", "lengths", "labels"]
    beyond = [(x, lengths + 1, y) for x, lengths, y in batches]
    assert [p.kind for p in parts_of(beyond)] == ["input", "tokens", "labels"]


def test_a_length_may_fill_the_room_that_its_sequences_have():
    fills = {}
    for name, own in (("short", torch.tensor([3, 5, 4, 2, 5, 4])), ("full", LENGTHS)):
        found = made([{"x": X, "lens": own, "y": Y}])["length"]
        fills[name] = [c.level for c, batch in found if "as there is room" in c.what]
        assert all(int(batch["lens"].max()) <= 8 for _, batch in found)
    assert fills == {"short": ["possible"], "full": []}


def test_length_of_one_comes_where_lengths_differ_and_never_where_all_are_equal():
    ys = torch.randint(1, 9, (6, 8))
    levels = {}
    for name, own in (
        ("varying", torch.tensor([6, 7, 8, 6, 7, 8])),
        ("equal", torch.full((6,), 8)),
    ):
        num_letters = torch.tensor([2, 3, 4, 5, 2, 3])
        batch = {"x": X, "lens": own, "y": ys, "y_lens": num_letters}
        found = made([batch])["length"]
        levels[name] = {c.what: c.level for c, _ in found}
    assert levels["varying"]["one sample with batch['lens'] 1"] == "possible"
    assert levels["equal"]["one sample with batch['lens'] 1"] == "far"
    joint = "one sample with the shortest batch['lens'] seen and the longest batch['y_lens']"
    assert levels["varying"][joint] == "possible"


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_get_one_of_a_single_step(is_sorted):
    lengths = [5, 4, 2] if is_sorted else [4, 2, 5]
    rows = [torch.randn(n, 3) for n in lengths]
    batch = {"x": pack_sequence(rows, enforce_sorted=is_sorted), "y": torch.tensor([0, 1, 0])}
    found = [b for c, b in made([batch])["length"] if c.what.endswith("a sequence of length 1")]
    padded, now = pad_packed_sequence(found[0]["x"], batch_first=True)
    assert now.tolist() == [1 if n == 2 else n for n in lengths]
    longest = lengths.index(5)
    assert torch.equal(padded[longest], rows[longest]) and found[0]["y"] is batch["y"]


def test_sparse_target_may_be_blank_in_a_small_batch_only():
    depth = torch.rand(6, 4, 4) * (torch.rand(6, 4, 4) < 0.3)
    images = torch.rand(6, 3, 4, 4)
    for number, level in ((2, "possible"), (6, "far")):
        found = made([{"rgb": images[:number], "depth": depth[:number]}])["blank-batch"]
        assert {c.level for c, _ in found if c.what.startswith("batch['depth']")} == {level}


@pytest.mark.parametrize(("heat", "level"), [(0.5, "far"), (9.0, "possible")])
def test_share_may_be_zero_where_shares_come_near_to_it(heat, level):
    shares = torch.softmax(heat * torch.linspace(-1, 1, 24).reshape(4, 6).T, 1)
    found = made([{"shares": shares, "next": torch.randn(6, 1)}])
    assert {c.level for c, _ in found["zero"] + found["certain"]} == {level}
    _, batch = found["zero"][0]
    assert torch.allclose(batch["shares"].sum(1), torch.ones(6))


@pytest.mark.parametrize(("lowest", "level"), [(0.01, "possible"), (0.37, "far"), (0.0137, "far")])
def test_amount_in_cents_may_be_zero_where_a_cent_was_seen(lowest, level):
    prices = (torch.rand(6, 8) * 5 + 0.4).round(decimals=2)
    prices[2, 3] = lowest
    found = made([{"prices": prices, "next": torch.randn(6, 1)}])["zero"]
    assert [c.level for c, _ in found if "exactly 0" in c.what] == [level]


@pytest.mark.parametrize(
    ("floor", "level"),
    [(0.0, "possible"), (0.3, "far"), (None, "far")],
    ids=["even", "above", "cut"],
)
def test_amount_that_comes_down_to_next_to_nothing_may_be_zero(floor, level):
    waited = torch.linspace(0.004, 4.0, 240)[torch.randperm(240)].reshape(5, 48)
    waited = waited.clamp(min=0.05) if floor is None else waited + floor
    found = made([{"waited": row[:, None], "next": torch.randn(48, 1)} for row in waited])["zero"]
    assert [c.level for c, _ in found if "exactly 0" in c.what] == [level]


def test_batch_of_real_samples_may_have_no_value_above_a_threshold():
    batches = [(torch.randn(4, 3), torch.rand(4, 6)) for _ in range(8)]
    limit = torch.cat([y for _, y in batches]).max()
    real = {tuple(row.tolist()) for _, y in batches for row in y}
    found = [
        (c, b) for c, b in made(batches)["one-sided"] if "without any large batch[1]" in c.what
    ]
    candidate, (x, y) = found[0]
    assert candidate.level == "possible" and candidate.probability > 1e-5
    assert float(y.max()) < limit and {tuple(row.tolist()) for row in y} <= real
    assert len({tuple(row.tolist()) for row in x}) == 4


def test_mask_that_says_where_the_ids_are_goes_with_them():
    ids = TOKENS.masked_fill(~MASK, 0)
    _, batch = made([{"ids": ids, "mask": MASK.long()}])["mask"][0]
    assert not batch["mask"][0].any() and not batch["ids"][0].any()
    assert torch.equal(batch["ids"][1:], ids[1:])
    _, batch = made([{"ids": TOKENS, "mask": MASK.long()}])["mask"][0]
    assert batch["ids"] is TOKENS


def test_batch_of_real_samples_may_lack_a_cluster():
    x = torch.arange(3).repeat(8)[:, None] * 100 + torch.rand(24, 2)
    real = {tuple(row.tolist()) for row in x}
    found = made([(part, torch.zeros(6)) for part in x.split(6)])["unlike"]
    drawn = [b[0] for _, b in found]
    assert all(len((d[:, 0] / 100).int().unique()) < 3 for d in drawn)
    assert all({tuple(r.tolist()) for r in d} <= real for d in drawn)
    assert all(len(d.unique(dim=0)) == 6 for d in drawn)


@pytest.mark.parametrize(("number", "level"), [(2, "possible"), (16, "far")])
def test_few_scores_may_all_be_weak(number, level):
    batches = [(torch.randn(number, 3), torch.rand(number, 6)) for _ in range(3)]
    ((candidate, (_, y)),) = made(batches)["weak"]
    assert candidate.level == level and torch.equal(y, 0.5 * batches[0][1])


@pytest.mark.parametrize(
    ("numbers", "level"), [([2, 0, 0, 1, 3, 0], "likely"), ([2, 0, 1, 1, 3, 2], "possible")]
)
def test_batch_of_images_may_hold_no_object_at_all(numbers, level):
    def image(n):
        return {"boxes": torch.rand(n, 4), "labels": torch.arange(n)}

    images = [torch.rand(3, 8, 8) for _ in range(3)]
    batches = [(images, [image(n) for n in part]) for part in (numbers[:3], numbers[3:])]
    found = [(c, b) for c, b in made(batches)["empty"] if "any of them" in c.what]
    ((candidate, (same, targets)),) = found
    assert candidate.level == level and all(a is b for a, b in zip(same, images))
    assert [(len(t["boxes"]), len(t["labels"])) for t in targets] == 3 * [(0, 0)]


def test_batch_of_several_labels_may_lack_one_of_them():
    labels = [(torch.arange(6)[:, None] < torch.tensor([2, 3, 5])).float() for _ in range(9)]
    found = made([(torch.randn(6, 4), y) for y in labels])["absent"]
    without = next(b for c, b in found if c.what == "a batch with batch[1][:, 0] 0 only")
    assert not without[1][:, 0].any() and without[1].any()
    assert any(c.what == "a batch with batch[1][:, 2] 1 only" for c, _ in found)


@pytest.mark.parametrize(("sizes", "level"), [([3, 1, 4, 2], "possible"), ([9, 8, 9, 9], "far")])
def test_group_may_lack_its_entries_where_small_ones_were_seen(sizes, level):
    groups = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    ((candidate, batch),) = made([{"x": X[:, 0], "group": groups}])["group"]
    assert candidate.level == level
    assert (
        sorted(set(batch["group"].tolist())) == [0, 1, 3] and batch["group"].shape == groups.shape
    )


@pytest.mark.parametrize(
    ("values", "level"), [([10, 30, 20, 40, 50, 20], "possible"), ([30, 60, 35, 40, 50, 45], "far")]
)
def test_count_in_tens_may_be_zero_where_ten_was_seen(values, level):
    seen = torch.tensor(values, dtype=torch.float32)[:, None]
    assert levels([(X, seen)], "zero")[0] == level


def test_column_that_is_no_feature_is_not_a_hundred_times_as_large_with_the_others():
    found = {c.what: b for c, b in made([(X, Y.float() - 9.5, Y)])["outlier-batch"]}
    batch = found["a whole batch 100 times as large"]
    assert torch.equal(batch[0], X * 100) and torch.equal(batch[1], Y.float() - 9.5)


def test_sequence_keeps_the_end_that_every_one_has():
    lengths = torch.tensor([2, 5, 3, 8, 4, 2, 6, 3])
    places = torch.arange(8)
    ids = torch.randint(3, 50, (8, 8)) * (places < lengths[:, None] - 1)
    ids = torch.where(places == lengths[:, None] - 1, 2, ids)
    found = {c.what: (c, b) for c, b in made([(ids, Y.repeat(2)[:8])])["padding"]}
    nothing, _ = found["one sequence of batch[0] with nothing but padding (0)"]
    only, batch = found["one sequence of batch[0] with nothing but what every one has ([2])"]
    assert (nothing.level, only.level) == ("far", "possible")
    assert batch[0][0].tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
