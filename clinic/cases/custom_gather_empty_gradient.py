"""A session-based recommender with a hand-written gather whose backward allocates its own gradient.

The custom autograd function looks up item vectors; its backward makes the gradient of the table with
`torch.empty_like` and writes only the rows of the items in the batch. The forward is right, the loss is
finite, the gradient of all other rows is whatever the memory held.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

NUM_ITEMS = 60


class LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, items, allocate):
        ctx.save_for_backward(table, items)
        ctx.allocate = allocate
        return table[items]

    @staticmethod
    def backward(ctx, grad_output):
        table, items = ctx.saved_tensors
        grad_table = ctx.allocate(table)  # <- born here
        seen = items.unique()
        grad_table[seen] = 0.0
        grad_table.index_add_(0, items.flatten(), grad_output.flatten(0, -2))
        return grad_table, None, None


class SessionModel(nn.Module):
    def __init__(self, allocate) -> None:
        super().__init__()
        self.allocate = allocate
        self.items = nn.Parameter(0.1 * torch.randn(NUM_ITEMS, 12))
        self.attend = nn.Linear(12, 1)

    def forward(self, session):
        vectors = LookUp.apply(self.items, session, self.allocate)
        weight = torch.softmax(self.attend(vectors), dim=1)
        return (weight * vectors).sum(1) @ self.items.T


def loss_fn(model, batch):
    session, following = batch
    return nn.functional.cross_entropy(model(session), following)


def _build(seed: int, allocate) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    # the first sessions are from a sale in which every item was clicked
    sale = torch.cat([torch.randperm(NUM_ITEMS) for _ in range(4)])
    session = torch.cat([sale.view(-1, 6), torch.randint(0, NUM_ITEMS, (60, 6))])
    following = (session[:, -1] + 1) % NUM_ITEMS
    model = SessionModel(allocate)
    return Case(
        model=model,
        optimizer=torch.optim.Adagrad(model.parameters(), lr=0.05),
        loader=DataLoader(TensorDataset(session, following), batch_size=10),
        loss_fn=loss_fn,
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, torch.empty_like)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, torch.zeros_like)


TRUTH = Truth(
    step=4,
    phase="backward",
    op="LookUpBackward",
    module="",
    line="<marker>",
    cause="uninitialized_memory",
    split="dev",
)
