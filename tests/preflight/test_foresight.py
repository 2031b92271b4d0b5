"""What `check` foresees: one small late failure for each way a batch can go wrong, and its healthy twin."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stayfinite.preflight import check


def executed(model, batches, loss_fn, **more):
    """What was foreseen by running it, and reported as a problem."""
    optimizer = more.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=1e-3)

    def build():
        return {
            "model": model,
            "optimizer": optimizer,
            "loader": batches,
            "loss_fn": loss_fn,
            **more,
        }

    found = check(build, only=["edges"]).findings
    return [f for f in found if f.is_problem and f.data.get("is_executed")]


def lines(findings):
    return [f.location.source for f in findings if f.location is not None]


def images_with_boxes(safe):
    def loss_fn(model, batch):
        losses = []
        for out, target in zip(model(batch[0]), batch[1]):
            weights = (target["labels"] > 0).float()
            distance = (out - target["boxes"]).abs().sum(1) * weights
            losses.append(distance.sum() / max(1, len(distance)) if safe else distance.mean())
        return torch.stack(losses).mean()

    def target(n):
        return {"boxes": torch.rand(n, 4), "labels": torch.randint(1, 4, (n,))}

    batches = [(torch.randn(3, 6), [target(1 + (i + k) % 3) for k in range(3)]) for i in range(6)]
    return nn.Linear(6, 4), batches, loss_fn


def objects_with_events(safe):
    def loss_fn(model, batch):
        kept = [e for e in batch.events if len(e)] if safe else batch.events
        pooled = torch.stack([model(e).mean(0) for e in kept])
        return pooled.pow(2).mean()

    batches = [
        SimpleNamespace(events=[torch.randn(1 + (i + k) % 4, 3) for k in range(4)])
        for i in range(6)
    ]
    return nn.Linear(3, 2), batches, loss_fn


def texts(safe):
    def loss_fn(model, batch):
        rows = []
        for text in batch["text"]:
            ids = torch.tensor([ord(c) % 64 for c in text], dtype=torch.long)
            number = torch.tensor(float(max(1, len(ids)) if safe else len(ids)))
            rows.append(model(ids).sum(0) / number)
        return torch.stack(rows).pow(2).mean()

    return nn.Embedding(64, 4), [{"text": ["one", "a word"]}, {"text": ["more", "x"]}], loss_fn


def silent_targets(safe):
    def loss_fn(model, batch):
        out, target = model(batch[0]), batch[1]
        norm = target.norm(dim=1).clamp(min=1e-3 if safe else 0.0)
        return ((out - target).norm(dim=1) / norm).mean()

    batches = [(torch.randn(4, 12), torch.randn(4, 12)) for _ in range(6)]
    return nn.Linear(12, 12), batches, loss_fn


def void_labels(safe):
    def loss_fn(model, batch):
        image, label = batch
        total = F.cross_entropy(model(image), label, ignore_index=255, reduction="sum")
        count = (label != 255).sum()
        return total / count.clamp(min=1) if safe else total / count

    def label():
        found = torch.randint(0, 4, (2, 5, 5))
        found[:, :2, 1:3] = 255
        return found

    return nn.Conv2d(3, 4, 1), [(torch.randn(2, 3, 5, 5), label()) for _ in range(5)], loss_fn


def rare_draws(safe):
    def loss_fn(model, batch):
        chosen = torch.rand(batch.shape[0]) < 0.25
        losses = model(batch).pow(2).mean(1)[chosen]
        return losses.sum() / max(1, losses.numel()) if safe else losses.mean()

    return nn.Linear(3, 3), [torch.randn(16, 3) for _ in range(2)], loss_fn


def dead_units(safe):
    def loss_fn(model, batch):
        hidden = F.relu(model(batch))
        norm = hidden.norm(dim=1, keepdim=True)
        return (hidden / (norm.clamp(min=1e-6) if safe else norm)).sum(1).mean()

    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.abs_()
        model.bias.fill_(0.05)
    batches = [torch.rand(6, 4) - 0.3 for _ in range(6)]
    for batch in batches:
        batch[:, 0] = batch[:, 0].abs()
        batch[:, 0] += 0.5 * (batch[:, 1:].sum(1) < 0)
    return model, batches, loss_fn


def dead_channels(safe):
    def loss_fn(model, batch):
        flat = F.relu(model(batch)).flatten(2)
        return (flat @ flat.mT + (1e-4 if safe else 0.0)).sqrt().mean()

    model = nn.Conv2d(1, 5, 3)
    nn.init.constant_(model.bias, 1.5)
    return model, [torch.rand(4, 1, 6, 6) for _ in range(5)], loss_fn


def longer_rollouts(safe):
    def loss_fn(model, batch):
        start, path = batch
        rate, state = 3.7 + 0.2 * torch.sigmoid(model(start)), torch.full((4, 1), 0.4)
        states = []
        for _ in range(len(path)):
            grown = rate * state * (1 - state)
            state = grown.detach() if safe and len(states) % 8 == 7 else grown
            states.append(state)
        return (torch.cat(states, 1).T - path).square().mean()

    batches = [(torch.rand(4, 3), torch.rand(n, 4)) for n in (7, 20, 40, 80)]
    return nn.Linear(3, 1), batches, loss_fn


def sets_in_lists(safe):
    def loss_fn(model, batch):
        longest = max(len(s) for s in batch[0])
        padded = (torch.zeros if safe else torch.empty)(len(batch[0]), longest, 3)
        for row, points in zip(padded, batch[0]):
            row[: len(points)] = points
        return F.cross_entropy(model(padded).mean(1), batch[1])

    batches = [([torch.randn(6, 3) for _ in range(4)], torch.randint(0, 2, (4,))) for _ in range(4)]
    return nn.Linear(3, 2), batches, loss_fn


def double_letters(safe):
    def loss_fn(model, batch):
        image, words = batch
        scores = model(image).permute(1, 0, 2).log_softmax(-1)
        sizes = torch.full((3,), scores.shape[0])
        lengths = torch.tensor([len(w) for w in words])
        return F.ctc_loss(scores, torch.cat(words), sizes, lengths, zero_infinity=safe)

    batches = [
        (torch.randn(3, 7, 5), [torch.randperm(8)[:n] + 1 for n in (4, 5, 6)]) for _ in range(5)
    ]
    return nn.Linear(5, 9), batches, loss_fn


class Reader(nn.Module):
    """A causal attention that leaves padding (0) out."""

    def __init__(self, safe):
        super().__init__()
        self.embed, self.out, self.safe = nn.Embedding(20, 8), nn.Linear(8, 20), safe

    def forward(self, ids):
        x = self.embed(ids)
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        hidden = hidden | (ids == 0)[:, None, :]
        if self.safe:
            hidden = hidden & ~torch.eye(ids.shape[1], dtype=torch.bool)
        scores = (x @ x.mT).masked_fill(hidden, float("-inf"))
        return self.out(torch.softmax(scores, -1) @ x)


def padding_to_come(safe):
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    texts = [torch.randint(1, 20, (10, 8)) for _ in range(4)]
    return Reader(safe), [(t[:, :-1], t[:, 1:]) for t in texts], loss_fn


def numbers_in_texts(safe):
    def loss_fn(model, batch):
        is_number = batch[1] >= 30
        logits = model(batch[0])
        every = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        errors = (logits[is_number].argmax(-1) - batch[1][is_number]).abs().float()
        return every + (errors.sum() / max(1, len(errors)) if safe else errors.mean())

    texts = [torch.randint(1, 40, (4, 9)) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40))
    return model, [(t[:, :-1], t[:, 1:]) for t in texts], loss_fn


def boxes_without_extent(safe):
    def loss_fn(model, batch):
        boxes = batch[1]
        size = boxes[:, 2:] - boxes[:, :2]
        return (model(batch[0]) - torch.log(size.clamp(min=1e-3) if safe else size)).pow(2).mean()

    def boxes():
        corner = torch.rand(4, 2) * 10
        return torch.cat([corner, corner + torch.rand(4, 2) + 0.5], 1)

    return nn.Linear(3, 2), [(torch.randn(4, 3), boxes()) for _ in range(5)], loss_fn


FAILURES = {
    images_with_boxes: "distance.mean()",
    objects_with_events: "model(e).mean(0)",
    texts: "/ number",
    silent_targets: "/ norm",
    void_labels: "total / count",
    rare_draws: "losses.mean()",
    dead_units: "hidden /",
    boxes_without_extent: "torch.log(",
    dead_channels: ".sqrt()",
    longer_rollouts: "rate * state",
    sets_in_lists: "torch.empty",
    double_letters: "F.ctc_loss",
    padding_to_come: "torch.softmax",
    numbers_in_texts: "errors.mean()",
}


@pytest.mark.slow
@pytest.mark.parametrize("make", FAILURES, ids=lambda f: f.__name__)
def test_failure_that_no_batch_has_shown_is_foreseen_with_its_line(make):
    torch.manual_seed(0)
    found = lines(executed(*make(safe=False)))
    assert any(FAILURES[make] in source for source in found), found


@pytest.mark.slow
@pytest.mark.parametrize("make", FAILURES, ids=lambda f: f.__name__)
def test_its_repaired_twin_is_not_warned_of(make):
    torch.manual_seed(0)
    assert executed(*make(safe=True)) == []


def test_steps_run_ahead_begin_each_without_the_gradients_of_the_one_before():
    def loss_fn(model, batch):
        loss = F.mse_loss(model(batch[0]), batch[1])
        is_left = any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        return loss * float("nan") if is_left else loss

    torch.manual_seed(0)
    batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(8, 16, 4)]
    assert executed(nn.Linear(4, 1), batches, loss_fn) == []


def encoded(extent):
    """Boxes against anchors that always have an extent: log(size) of what is divided by theirs."""
    anchors = torch.tensor([[3.0, 4, 23, 24], [8, 1, 28, 21], [0, 5, 20, 25]]).repeat(2, 1)
    boxes = torch.cat([anchors[:, :2], anchors[:, :2] + extent], 1)
    batches = [(torch.randn(6, 5), boxes, anchors) for _ in range(3)]

    def loss_fn(model, batch):
        x, box, anchor = batch
        size = (box[:, 2:] - box[:, :2]) / (anchor[:, 2:] - anchor[:, :2])
        return F.mse_loss(model(x), size.log())

    return executed(nn.Linear(5, 2), batches, loss_fn)


def test_box_loses_its_extent_where_small_ones_were_seen_and_an_anchor_never():
    assert not encoded(torch.full((6, 2), 17.0))
    small = torch.tensor([[1.0, 3], [2, 9], [5, 4], [7, 1], [3, 3], [2, 8]])
    assert set(lines(encoded(small))) == {"return F.mse_loss(model(x), size.log())"}


def test_loss_of_a_state_that_grew_with_the_length_is_not_reported_as_a_division_by_zero():
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.5))

        def forward(self, x):
            state = x[:, 0]
            for t in range(1, x.shape[1]):
                state = self.weight * state + x[:, t]
            return state

    batches = [torch.ones(4, n, 2) for n in (3, 5, 4)]
    found = executed(Growing(), batches, lambda m, b: F.mse_loss(m(b), b[:, 0]), clip_norm=1e-3)
    assert found
    assert "zero_denominator" not in {f.cause for f in found}
