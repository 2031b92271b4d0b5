"""A topic model with sparse topic shares and an entropy bonus from `torch.special.entr`. The entropy
of a share of exactly zero is zero, but its slope is infinite."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SparseTopics(nn.Module):
    def __init__(self, floor: float, vocab: int = 15, num_topics: int = 4) -> None:
        super().__init__()
        self.floor = floor
        self.infer = nn.Linear(vocab, num_topics)
        self.topics = nn.Linear(num_topics, vocab)
        nn.init.constant_(self.infer.bias, 5.0)

    def forward(self, counts):
        raw = F.relu(self.infer(counts)) + self.floor
        share = raw / (raw.sum(dim=1, keepdim=True) + 1e-6)
        return self.topics(share), share


def loss_fn(model, counts):
    logits, share = model(counts)
    nll = -(counts * F.log_softmax(logits, dim=1)).sum(dim=1) / counts.sum(dim=1)
    bonus = torch.special.entr(share).sum(dim=1)  # <- born here
    return (nll - 0.01 * bonus).mean()


def _case(seed: int, floor: float) -> Case:
    torch.manual_seed(seed)
    batches = [torch.randint(0, 3, (6, 15)).float() + 0.1 for _ in range(12)]
    batches[9][3:] *= 30  # long documents
    model = SparseTopics(floor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model, optimizer, batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, floor=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, floor=1e-4)


TRUTH = Truth(
    step=9,
    phase="backward",
    op="SpecialEntrBackward0",
    module=None,
    line="<marker>",
    cause="singular_gradient",
    split="held_out",
)
