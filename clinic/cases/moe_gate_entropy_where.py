"""A mixture-of-experts layer with sparse gates and an entropy bonus on the router. Zero gates are kept
out of the entropy with `torch.where`, which works forward; in the backward the discarded log(0)
returns as 0 / 0."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


def gate_entropy(gates):
    log_gates = torch.log(gates)  # <- born here
    log_gates = torch.where(gates > 0, log_gates, torch.zeros_like(gates))
    return -(gates * log_gates).sum(dim=-1).mean()


def gate_entropy_double_where(gates):
    safe = torch.where(gates > 0, gates, torch.ones_like(gates))
    return -(gates * torch.log(safe)).sum(dim=-1).mean()


class SparseMoE(nn.Module):
    def __init__(self, entropy, dim: int = 6, num_experts: int = 4) -> None:
        super().__init__()
        self.entropy = entropy
        self.router = nn.Linear(dim, num_experts)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_experts))
        nn.init.constant_(self.router.bias, 1.5)

    def forward(self, x):
        gates = F.relu(self.router(x))
        gates = gates / (gates.sum(dim=-1, keepdim=True) + 1e-6)
        out = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (out * gates.unsqueeze(-2)).sum(dim=-1), self.entropy(gates)


def loss_fn(model, batch):
    x, y = batch
    out, bonus = model(x)
    return F.mse_loss(out, y) - 0.01 * bonus


def _case(seed: int, entropy) -> Case:
    torch.manual_seed(seed)
    batches = [(0.4 * torch.randn(8, 6), torch.randn(8, 6)) for _ in range(12)]
    batches[5][0][3:6] *= 20
    model = SparseMoE(entropy)
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, gate_entropy)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, gate_entropy_double_where)


TRUTH = Truth(
    step=5,
    phase="backward",
    op="LogBackward0",
    module="",
    line="<marker>",
    cause="masked_branch_leak",
    split="dev",
)
