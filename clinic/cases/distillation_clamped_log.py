"""Knowledge distillation. The student's probabilities are logged and then clamped from below, so that
the loss stays finite even where a probability underflows to zero; the clamp's zero gradient meets the
infinite slope of the logarithm there."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

LOGIT_SCALE = 32.0


class DistillationLoss(nn.Module):
    def __init__(self, floor: float = -50.0) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, student_logits, teacher_probs):
        probs = student_logits.softmax(dim=-1)
        log_probs = probs.log().clamp(min=self.floor)  # <- born here
        return -(teacher_probs * log_probs).sum(dim=-1).mean()


class DistillationLossLogSpace(DistillationLoss):
    def forward(self, student_logits, teacher_probs):
        log_probs = student_logits.log_softmax(dim=-1).clamp(min=self.floor)
        return -(teacher_probs * log_probs).sum(dim=-1).mean()


def _case(seed: int, criterion: nn.Module) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(96, 7)
    x[53] *= 12
    teacher = F.softmax(x.clamp(-3, 3) @ torch.randn(7, 5), dim=-1)
    loader = DataLoader(
        TensorDataset(x, teacher), batch_size=8, generator=torch.Generator().manual_seed(seed)
    )

    def loss_fn(model, batch):
        x, teacher = batch
        return criterion(LOGIT_SCALE * model(x), teacher)

    student = nn.Sequential(nn.Linear(7, 12), nn.GELU(), nn.Linear(12, 5))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    return Case(student, optimizer, loader, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, DistillationLoss())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, DistillationLossLogSpace())


TRUTH = Truth(
    step=6,
    phase="backward",
    op="LogBackward0",
    module=None,
    line="<marker>",
    cause="masked_branch_leak",
    split="dev",
)
