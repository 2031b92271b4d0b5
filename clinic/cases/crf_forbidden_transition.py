"""A tagger with a CRF in which impossible transitions, such as O to I, have a score of minus infinity.
One annotated sentence contains such a transition: the gold path has probability zero by construction."""

import torch
from torch import nn

from clinic.form import Case, Truth

OUTSIDE, BEGIN, INSIDE = range(3)


class Crf(nn.Module):
    def __init__(self, forbidden_score: float) -> None:
        super().__init__()
        self.forbidden_score = forbidden_score
        self.transition = nn.Parameter(0.1 * torch.randn(3, 3))
        forbidden = torch.zeros(3, 3, dtype=torch.bool)
        forbidden[OUTSIDE, INSIDE] = True
        self.register_buffer("forbidden", forbidden)

    def forward(self, emission, tags):
        trans = self.transition.masked_fill(self.forbidden, self.forbidden_score)
        alpha = emission[0]
        for step in emission[1:]:
            alpha = torch.logsumexp(alpha.unsqueeze(1) + trans, dim=0) + step
        emitted = emission.gather(1, tags.unsqueeze(1)).sum()
        moved = trans[tags[:-1], tags[1:]].sum()  # <- born here
        return alpha.logsumexp(dim=0) - emitted - moved


class Tagger(nn.Module):
    def __init__(self, forbidden_score: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(25, 8)
        self.lstm = nn.LSTM(8, 8)
        self.emit = nn.Linear(8, 3)
        self.crf = Crf(forbidden_score)

    def forward(self, words, tags):
        hidden, _ = self.lstm(self.embed(words))
        return self.crf(self.emit(hidden), tags)


def loss_fn(model, sentence):
    words, tags = sentence
    return model(words, tags) / len(words)


def _case(seed: int, forbidden_score: float) -> Case:
    torch.manual_seed(seed)
    sentences = []
    for i in range(14):
        tags = torch.tensor([OUTSIDE, BEGIN, INSIDE, INSIDE, OUTSIDE, OUTSIDE, BEGIN])
        if i == 10:
            tags[5] = INSIDE
        sentences.append((torch.randint(0, 25, (7,)), tags))
    model = Tagger(forbidden_score)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Case(model, optimizer, sentences, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, forbidden_score=float("-inf"))


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, forbidden_score=-20.0)


# The sentinel is picked out and summed on the one line that brings it into the loss.
TRUTH = Truth(
    step=10,
    phase="forward",
    op=("aten.index", "aten.sum"),
    module="crf",
    line="<marker>",
    cause="infeasible_target",
    split="held_out",
)
