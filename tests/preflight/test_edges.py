"""The edges group: planted defects, which batches are made, and how hard a break is judged."""

import pytest
import torch
from tests.preflight.healthy import loader
from tests.preflight.planted_probes import assert_found, of_group

from stayfinite.preflight.edges import edges
from stayfinite.preflight.edges_batches import edges_of, parts_of
from stayfinite.preflight.probes import Seen, Subject


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("edges"), ids=lambda d: d.name)
def test_planted_defect_is_named(defect):
    assert_found(defect)


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


def made(batch, **more):
    return {e.check: e for e in edges_of(Subject(models={}, batches=[batch], **more))}


def test_only_float_inputs_are_scaled_and_the_batch_stays_as_it_was():
    before = X.clone()
    found = made((X, Y))
    assert torch.equal(found["edges/huge"].batch[0], X * 1e4)
    assert found["edges/huge"].batch[1] is Y
    assert not found["edges/zero"].batch[0].any()
    assert not found["edges/zero"].milder.batch[0][0].any()
    assert torch.equal(found["edges/zero"].milder.batch[0][1:], X[1:])
    assert torch.equal(X, before)


def test_integers_stay_in_range():
    for edge in edges_of(Subject(models={}, batches=[(TOKENS, LENGTHS, Y)])):
        tokens, lengths, labels = edge.batch
        assert set(tokens.unique().tolist()) <= set(TOKENS.unique().tolist())
        assert int(lengths.min()) >= 3 and int(lengths.max()) <= 8
        assert set(labels.unique().tolist()) <= {0, 1, 2}


def test_batch_of_one_is_certain_only_where_the_loader_makes_one():
    odd, even = (
        loader(X[:5].repeat(5, 1, 1), Y[:5].repeat(5), batch_size=6),
        loader(X, Y, batch_size=6),
    )
    assert made((X, Y), loaders=[odd])["edges/batch-of-1"].is_certain
    assert not made((X, Y), loaders=[even])["edges/batch-of-1"].is_certain
    assert "edges/last-batch" not in made((X, Y), loaders=[even])


def test_arguments_of_a_call_keep_their_rows():
    found = made(((X,), {}), vehicle="call")
    assert "edges/batch-of-1" not in found and "edges/repeated" not in found
    assert "edges/zero" in found


def answer(subject, breaks):
    """The findings when the probes whose name has one of these words break."""
    checks = edges(subject)
    probe = next(checks)
    try:
        while True:
            is_bad = any(word in probe.name for word in breaks)
            probe = checks.send(
                Seen(probe.name, loss=float("nan") if is_bad else 1.0, is_finite=not is_bad)
            )
    except StopIteration as stop:
        return {f.check: f for f in stop.value}


def test_break_on_the_whole_batch_only_is_mentioned_on_the_pass_line():
    found = answer(Subject(models={}, batches=[(X, Y)]), ["a whole batch that is all zero"])
    assert found["edges/zero"].status == "pass"
    assert "a whole batch that is all zero breaks it (loss nan)" in found["edges/zero"].value


def test_break_on_one_sample_is_a_warning():
    found = answer(Subject(models={}, batches=[(X, Y)]), ["all zero"])
    assert found["edges/zero"].status == "warn"
    assert found["edges/zero"].action


def test_batch_of_one_that_never_comes_is_no_warning():
    full = loader(X, Y, batch_size=6)
    found = answer(Subject(models={}, batches=[(X, Y)], loaders=[full]), ["a batch of one sample"])
    assert found["edges/batch-of-1"].status == "pass"
    assert "but the loader makes none" in found["edges/batch-of-1"].value
    found = answer(Subject(models={}, batches=[(X, Y)]), ["a batch of one sample"])
    assert "mind the last one" in found["edges/batch-of-1"].value


def test_batch_that_chance_will_not_bring_is_no_warning():
    x, y = torch.randn(64, 3), torch.arange(64) % 4
    found = answer(Subject(models={}, batches=[(x, y)]), ["one class only"])
    assert found["edges/one-class"].status == "pass"
    found = answer(Subject(models={}, batches=[(x[:3], y[:3])]), ["one class only"])
    assert found["edges/one-class"].status == "warn"
    y = torch.full((64, 5), -100)
    y[:, 0] = 1
    found = answer(Subject(models={}, batches=[(x, y)]), ["every label is ignored"])
    assert found["edges/no-label"].status == "pass"


def test_training_that_breaks_by_itself_is_not_asked_further():
    found = answer(Subject(models={}, batches=[(X, Y)]), ["the batch as it is"])
    assert [f.status for f in found.values()] == ["skip"]
