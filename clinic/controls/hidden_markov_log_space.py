"""The forward algorithm in log space: all states but one start with a log probability of -inf."""

import torch
from torch import nn

from clinic.form import Case

NUM_STATES, NUM_SYMBOLS = 4, 5


class HiddenMarkov(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transition = nn.Parameter(0.1 * torch.randn(NUM_STATES, NUM_STATES))
        self.emission = nn.Parameter(0.1 * torch.randn(NUM_STATES, NUM_SYMBOLS))

    def forward(self, symbols):
        transition = self.transition.log_softmax(1)
        emission = self.emission.log_softmax(1)
        alpha = torch.full((len(symbols), NUM_STATES), -torch.inf)
        alpha[:, 0] = 0.0
        for symbol in symbols.unbind(1):
            alpha = torch.logsumexp(alpha[:, :, None] + transition, dim=1) + emission.T[symbol]
        return torch.logsumexp(alpha, dim=1)


def loss_fn(model, symbols):
    return -model(symbols).mean() / symbols.shape[1]


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    start = torch.randint(0, 2, (14, 6, 1))
    model = HiddenMarkov()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.2),
        loader=list((start + torch.arange(7)) % NUM_SYMBOLS),
        loss_fn=loss_fn,
    )
