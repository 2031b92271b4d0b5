"""Word vectors with `sparse=True` and SparseAdam: the gradients are sparse tensors, sometimes uncoalesced."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case


class SkipGram(nn.Module):
    def __init__(self, num_words: int) -> None:
        super().__init__()
        self.center = nn.Embedding(num_words, 8, sparse=True)
        self.around = nn.EmbeddingBag(num_words, 8, mode="sum", sparse=True)

    def forward(self, center, around):
        return (self.center(center) * self.around(around)).sum(1)


def loss_fn(model, batch):
    center, around, is_real = batch
    return nn.functional.binary_cross_entropy_with_logits(model(center, around), is_real)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    center = torch.randint(0, 50, (160,))
    around = (center[:, None] + torch.randint(0, 4, (160, 3))) % 50
    is_real = (torch.rand(160) < 0.5).float()
    around = torch.where(is_real[:, None] > 0, around, torch.randint(0, 50, (160, 3)))
    model = SkipGram(50)
    return Case(
        model=model,
        optimizer=torch.optim.SparseAdam(list(model.parameters()), lr=1e-2),
        loader=DataLoader(TensorDataset(center, around, is_real), batch_size=10),
        loss_fn=loss_fn,
    )
