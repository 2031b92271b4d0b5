"""A mixture of experts trained by normalized SGD, every tensor's gradient divided by its norm.

The router sends each token to one expert. An expert to which a batch sends no token runs on an empty
slice and gets gradients of exact zeros; zero by zero goes straight into its momentum and its weights.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class NormalizedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr: float, momentum: float, floor: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "floor": floor})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                norm = torch.linalg.vector_norm(p.grad).clamp(min=group["floor"])
                direction = torch.div(p.grad, norm)  # <- born here
                buffer = self.state[p].setdefault("direction", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(direction)
                p.sub_(group["lr"] * buffer)


class SwitchLayer(nn.Module):
    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))

    def forward(self, tokens):
        gate, choice = torch.softmax(self.router(tokens), dim=-1).max(dim=-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            picked = (choice == number).nonzero().squeeze(1)
            out = out.index_add(0, picked, expert(tokens[picked]))
        return gate.unsqueeze(1) * out


class SwitchClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.switch = SwitchLayer(8, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(tokens + self.switch(tokens))


def loss_fn(model, batch):
    tokens, label = batch
    return nn.functional.cross_entropy(model(tokens), label)


def _build(seed: int, floor: float) -> Case:
    torch.manual_seed(seed)
    tokens = torch.randn(24 * 16, 8)
    model = SwitchClassifier()
    return Case(
        model=model,
        optimizer=NormalizedSGD(model.parameters(), lr=0.01, momentum=0.9, floor=floor),
        loader=DataLoader(TensorDataset(tokens, tokens[:, :3].argmax(1)), batch_size=16),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, floor=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, floor=1e-12)


TRUTH = Truth(
    step=2,
    phase="optimizer",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="optimizer_denominator",
    split="held_out",
)
