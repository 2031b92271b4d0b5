"""A relu RNN over long sequences without clipping: the adding problem."""

import torch
from torch import nn

torch.manual_seed(1)


def adding_problem(batch, length):
    values = torch.rand(batch, length)
    marks = torch.zeros(batch, length)
    half = length // 2
    for b in range(batch):
        marks[b, torch.randint(0, half, (1,))] = 1
        marks[b, torch.randint(half, length, (1,))] = 1
    return torch.stack([values, marks], -1), (values * marks).sum(1)


class Net(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.RNN(2, hidden, nonlinearity="relu", batch_first=True)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain=2.0)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1]).squeeze(-1)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
losses = []
for step in range(40):
    length = 20 + 8 * step
    x, y = adding_problem(16, length)
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"final loss {sum(losses[-5:]) / 5:.4f}")
