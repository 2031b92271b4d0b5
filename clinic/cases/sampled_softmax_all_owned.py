"""Link prediction with sampled negatives. Candidates that the user has already bought are masked to
minus infinity before `log_softmax`; for one who has bought every candidate of the sample, nothing is
left, not even the positive."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class DotRecommender(nn.Module):
    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.users = nn.Embedding(20, dim, sparse=True)
        self.items = nn.Embedding(30, dim, sparse=True)

    def forward(self, user, candidates):
        return torch.einsum("bd,bcd->bc", self.users(user), self.items(candidates))


class SampledSoftmax(nn.Module):
    """The first candidate is the positive."""

    def __init__(self, keeps_positive: bool) -> None:
        super().__init__()
        self.keeps_positive = keeps_positive

    def forward(self, scores, is_owned):
        if self.keeps_positive:
            is_owned = torch.cat([torch.zeros_like(is_owned[:, :1]), is_owned[:, 1:]], dim=1)
        scores.masked_fill_(is_owned, float("-inf"))
        log_probs = F.log_softmax(scores, dim=1)  # <- born here
        return -log_probs[:, 0].mean()


def _case(seed: int, keeps_positive: bool) -> Case:
    torch.manual_seed(seed)
    criterion = SampledSoftmax(keeps_positive)
    batches = []
    for i in range(14):
        is_owned = torch.rand(6, 5) < 0.3
        is_owned[:, 0] = False
        if i == 9:
            is_owned[2] = True
        batches.append((torch.randint(0, 20, (6,)), torch.randint(0, 30, (6, 5)), is_owned))

    def loss_fn(model, batch):
        user, candidates, is_owned = batch
        return criterion(model(user, candidates), is_owned)

    model = DotRecommender()
    return Case(model, torch.optim.SparseAdam(model.parameters(), lr=1e-2), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, keeps_positive=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, keeps_positive=True)


TRUTH = Truth(
    step=9,
    phase="loss",
    op="aten._log_softmax",
    module=None,
    line="<marker>",
    cause="fully_masked_row",
    split="dev",
)
