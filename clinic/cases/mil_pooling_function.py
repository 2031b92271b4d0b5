"""Multiple-instance learning with a log-sum-exp pooling written as an autograd function to save
memory. It exponentiates the scores as they are; a strongly stained slide, whose sharpened score is
above 88, overflows."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

SHARPNESS = 25.0


class LseFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        weight = torch.exp(scores)  # <- born here
        total = weight.sum(dim=1, keepdim=True)
        ctx.save_for_backward(weight / total)
        return torch.log(total).squeeze(1)

    @staticmethod
    def backward(ctx, grad):
        (share,) = ctx.saved_tensors
        return grad.unsqueeze(1) * share


class SlideClassifier(nn.Module):
    def __init__(self, pool) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.pool = pool

    def forward(self, patches):
        scores = self.patch(patches).squeeze(-1)
        return self.pool(SHARPNESS * scores) / SHARPNESS


def loss_fn(model, batch):
    patches, is_tumor = batch
    return F.binary_cross_entropy_with_logits(model(patches), is_tumor)


def _case(seed: int, pool) -> Case:
    torch.manual_seed(seed)
    batches = [(torch.randn(4, 9, 6), torch.randint(0, 2, (4,)).float()) for _ in range(12)]
    batches[8][0][2] *= 25  # strongly stained
    model = SlideClassifier(pool)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, LseFunction.apply)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, lambda scores: torch.logsumexp(scores, dim=1))


TRUTH = Truth(
    step=8,
    phase="forward",
    op="aten.exp",
    module="",
    line="<marker>",
    cause="exp_overflow",
    split="dev",
)
