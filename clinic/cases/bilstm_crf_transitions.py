"""A BiLSTM-CRF tagger for named entities.

The CRF's start and end scores are initialized, the transition matrix is an `nn.Parameter` made with
`torch.empty` that nobody fills. On most days the memory happens to hold zeros; with deterministic
algorithms switched on, PyTorch fills it with NaN, and the first loss is NaN.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

NUM_TAGS = 5


class LinearChainCRF(nn.Module):
    def __init__(self, num_tags: int, fill: bool) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(num_tags))
        self.end = nn.Parameter(torch.zeros(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        if fill:
            nn.init.uniform_(self.transitions, -0.1, 0.1)

    def partition(self, emissions):
        score = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            step = score.unsqueeze(2) + self.transitions + emissions[:, t].unsqueeze(1)
            score = torch.logsumexp(step, dim=1)
        return torch.logsumexp(score + self.end, dim=1)

    def path_score(self, emissions, tags):
        picked = emissions.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        moves = self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        return picked + moves + self.start[tags[:, 0]] + self.end[tags[:, -1]]

    def forward(self, emissions, tags):
        return (self.partition(emissions) - self.path_score(emissions, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, fill: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 12)
        self.lstm = nn.LSTM(12, 8, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(16, NUM_TAGS)
        self.crf = LinearChainCRF(NUM_TAGS, fill)

    def forward(self, words, tags):
        hidden, _ = self.lstm(self.words(words))
        return self.crf(self.emit(hidden), tags)


def loss_fn(model, batch):
    return model(*batch)


def _build(seed: int, fill: bool) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    words = torch.randint(0, 40, (48, 9))
    model = Tagger(fill)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=DataLoader(TensorDataset(words, words % NUM_TAGS), batch_size=8),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, fill=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, fill=True)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="uninitialized_memory",
    split="dev",
)
