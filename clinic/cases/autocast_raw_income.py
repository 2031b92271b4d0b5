"""A credit model on raw tabular columns under float16 autocast. Nearly all incomes are a few ten
thousand; one applicant earns 120,000, which has no float16 value, so that the cast which autocast
puts before the first linear layer makes it infinite."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class CreditScorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 16)
        self.fc2 = nn.Linear(16, 1)
        with torch.no_grad():
            self.fc1.weight[:, 0] *= 1e-4

    def forward(self, x):
        h = torch.tanh(self.fc1(x))  # <- born here
        return self.fc2(h).squeeze(-1)


class CreditScorerScaled(CreditScorer):
    def forward(self, x):
        x = torch.cat([x[:, :1] / 1000.0, x[:, 1:]], dim=1)
        h = torch.tanh(self.fc1(x))
        return self.fc2(h).squeeze(-1)


def loss_fn(model, batch):
    x, defaulted = batch
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        logit = model(x)
    return F.binary_cross_entropy_with_logits(logit.float(), defaulted)


def _case(seed: int, scorer: type[CreditScorer]) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(96, 4)
    x[:, 0] = 30000 + 8000 * x[:, 0]
    x[61, 0] = 120000.0
    y = (torch.rand(96) < 0.3).float()
    loader = DataLoader(
        TensorDataset(x, y), batch_size=8, generator=torch.Generator().manual_seed(seed)
    )
    model = scorer()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, CreditScorer)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, CreditScorerScaled)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten._to_copy",
    module="fc1",
    line="<marker>",
    cause="low_precision_overflow",
    split="dev",
)
