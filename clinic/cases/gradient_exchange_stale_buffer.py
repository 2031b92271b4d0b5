"""Data parallel training with a hand-written gradient exchange.

The receive buffer is shared with the exchange of padding masks, 32-bit integers of -1 and 0. On one step
the average is taken before the peer's gradient has arrived, and the bits of the mask are read as floats:
-1 is a NaN. The forward and the loss are right, and so is the same step run again.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class Link:
    """Emulates the connection to one peer; `late_at` is the exchange that is read too early."""

    def __init__(self, late_at: int | None) -> None:
        self.late_at = late_at
        self.num_exchanges = 0

    def receive(self, gradient: torch.Tensor) -> torch.Tensor:
        is_late = self.num_exchanges == self.late_at
        self.num_exchanges += 1
        if is_late:
            mask = -(torch.arange(gradient.numel(), dtype=torch.int32) % 2)
            return mask.view(torch.float32).view_as(gradient)  # <- born here
        return 0.9 * gradient


class AverageGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, link):
        ctx.link = link
        return features.view_as(features)

    @staticmethod
    def backward(ctx, gradient):
        return (gradient + ctx.link.receive(gradient)) / 2, None


class Ranker(nn.Module):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 16), nn.Tanh())
        self.score = nn.Linear(16, 1)
        self.link = link

    def forward(self, documents):
        features = AverageGradient.apply(self.tower(documents), self.link)
        return self.score(features).squeeze(-1)


def loss_fn(model, batch):
    documents, relevance = batch
    scores = torch.log_softmax(model(documents), dim=1)
    return -(torch.softmax(relevance, dim=1) * scores).sum(1).mean()


def _build(seed: int, late_at: int | None) -> Case:
    torch.manual_seed(seed)
    queries = torch.randn(16, 4, 5, 10)
    model = Ranker(Link(late_at))
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loader=[(documents, 2 * documents[..., 0]) for documents in queries],
        loss_fn=loss_fn,
        clip_norm=5.0,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, late_at=8)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, late_at=None)


TRUTH = Truth(
    step=8,
    phase="backward",
    op="AverageGradientBackward",
    module="",
    line="<marker>",
    cause="hardware_or_nondeterminism",
    split="dev",
)
