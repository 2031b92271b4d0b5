"""A cross-attention decoder on sets of detected objects, with `nn.MultiheadAttention` and its
`key_padding_mask`. An image in which the detector found nothing has every key masked."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class CaptionDecoder(nn.Module):
    def __init__(self, has_null_key: bool, dim: int = 8) -> None:
        super().__init__()
        self.has_null_key = has_null_key
        self.word = nn.Embedding(20, dim)
        self.object = nn.Linear(6, dim)
        self.cross = nn.MultiheadAttention(dim, 2, batch_first=True, add_bias_kv=has_null_key)
        self.vocab = nn.Linear(dim, 20)

    def forward(self, words, objects, is_missing):
        keys = self.object(objects)
        x = self.word(words)
        attended, weights = self.cross(x, keys, keys, key_padding_mask=is_missing)  # <- born here
        return self.vocab(x + attended), weights


def loss_fn(model, batch):
    logits, weights = model(batch["words"][:, :-1], batch["objects"], batch["is_missing"])
    nll = F.cross_entropy(logits.flatten(0, 1), batch["words"][:, 1:].flatten())
    return nll + 0.01 * weights.square().sum(dim=-1).mean()


def _case(seed: int, has_null_key: bool) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(11):
        num_objects = torch.randint(1, 6, (3, 1))
        if i == 7:
            num_objects[1] = 0
        batches.append(
            {
                "words": torch.randint(0, 20, (3, 6)),
                "objects": torch.randn(3, 5, 6),
                "is_missing": torch.arange(5) >= num_objects,
            }
        )
    model = CaptionDecoder(has_null_key)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, has_null_key=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, has_null_key=True)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten._softmax",
    module="cross",
    line="<marker>",
    cause="fully_masked_row",
    split="held_out",
)
