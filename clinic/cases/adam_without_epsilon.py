"""A two-task text model trained with `Adam(eps=0)`, "because epsilon biases small gradients".

The second task joins after a few batches. Its embedding table has rows that no example uses yet; their
gradient is exactly zero, so both moments are zero and the update is zero by zero.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

FIRST_JOINT_BATCH = 5


class TwoTaskModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.sentiment = nn.Linear(8, 2)
        self.regions = nn.Embedding(6, 8)

    def forward(self, words):
        return self.words(words).mean(1)

    def sentiment_loss(self, text, label):
        return nn.functional.cross_entropy(self.sentiment(text), label)

    def region_loss(self, text, region):
        return (text - self.regions(region)).square().mean()


def loss_fn(model, batch):
    text = model(batch["words"])
    loss = model.sentiment_loss(text, batch["label"])
    if "region" in batch:
        loss = loss + 0.1 * model.region_loss(text, batch["region"])
    return loss


def reviews(num_batches: int) -> list[dict[str, torch.Tensor]]:
    batches = []
    for index in range(num_batches):
        words = torch.cat([torch.arange(10).view(2, 5), torch.randint(0, 10, (6, 5))])
        batch = {"words": words, "label": (words.sum(1) > 22).long()}
        if index >= FIRST_JOINT_BATCH:
            batch["region"] = torch.randint(0, 5, (8,))
        batches.append(batch)
    return batches


def _build(seed: int, eps: float) -> Case:
    torch.manual_seed(seed)
    model = TwoTaskModel()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2, eps=eps),
        loader=reviews(12),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, eps=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, eps=1e-8)


TRUTH = Truth(
    step=5,
    phase="optimizer",
    op="aten.addcdiv_",
    module=None,
    line=None,
    cause="optimizer_denominator",
    split="dev",
)
