"""A language model whose vocabulary was enlarged for two new special tokens.

The resize copies the old rows into a larger table made with the legacy constructor `torch.Tensor(n, d)` and
leaves the new rows as they are. The output layer is tied to the table, so the new rows are in every
softmax from the first batch on, though no text uses the tokens yet.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class TiedModel(nn.Module):
    def __init__(self, num_words: int, width: int = 10) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)

    def forward(self, text):
        hidden, _ = self.rnn(self.words(text))
        return nn.functional.linear(hidden, self.words.weight)


def resize_vocabulary(model: TiedModel, num_words: int, init_std: float | None) -> None:
    old = model.words.weight.data
    table = torch.Tensor(num_words, old.shape[1])
    if init_std is not None:
        nn.init.normal_(table, std=init_std)
    table[: len(old)] = old
    model.words = nn.Embedding.from_pretrained(table, freeze=False)


def loss_fn(model, text):
    logits = model(text[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def _build(seed: int, init_std: float | None) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model = TiedModel(16)
    resize_vocabulary(model, 18, init_std)
    start = torch.randint(0, 16, (10, 5, 1))
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        loader=list((start + 5 * torch.arange(7)) % 16),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, init_std=None)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, init_std=0.02)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="uninitialized_memory",
    split="held_out",
)
