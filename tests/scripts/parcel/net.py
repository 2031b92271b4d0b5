import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 1)

    def forward(self, x):
        return self.fc(x) + torch.acosh(x.sum(-1, keepdim=True) + 2)  # HERE
