"""A document classifier on tf-idf features with the idf weights kept in a buffer.

`log(num_documents / document_frequency)` is computed over the training corpus when the model is made.
A term of the vocabulary that no training document has gets an infinite weight, and its count of zero
times infinity is NaN in the first forward.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

VOCABULARY = 30


class TfIdf(nn.Module):
    def __init__(self, corpus: torch.Tensor, smooth: int) -> None:
        super().__init__()
        document_frequency = (corpus > 0).sum(0) + smooth
        self.register_buffer("idf", torch.log((len(corpus) + smooth) / document_frequency))

    def forward(self, counts):
        return counts / counts.sum(1, keepdim=True) * self.idf


class DocumentClassifier(nn.Module):
    def __init__(self, corpus: torch.Tensor, smooth: int) -> None:
        super().__init__()
        self.features = TfIdf(corpus, smooth)
        self.layers = nn.Sequential(
            nn.Linear(VOCABULARY, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2)
        )

    def forward(self, counts):
        return self.layers(self.features(counts))


def loss_fn(model, batch):
    counts, topic = batch
    return nn.functional.nll_loss(torch.log_softmax(model(counts), dim=-1), topic)


def _build(seed: int, smooth: int) -> Case:
    torch.manual_seed(seed)
    counts = torch.poisson(torch.full((72, VOCABULARY), 1.5))
    counts[:, 17] = 0.0
    topic = (counts[:, :8].sum(1) > counts[:, 8:16].sum(1)).long()
    model = DocumentClassifier(counts, smooth)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=DataLoader(TensorDataset(counts, topic), batch_size=6),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, smooth=0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, smooth=1)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="bad_initialization",
    split="dev",
)
