"""Face verification with a network in half precision. Embeddings are divided by their norm plus
1e-8; in float16 that epsilon is zero, and a blank crop, for which every ReLU is off, gives 0 / 0."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class FaceNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, bias=False)
        self.fc = nn.Linear(6, 12, bias=False)

    def normalize(self, z):
        return z / (z.norm(dim=1, keepdim=True) + 1e-8)  # <- born here

    def forward(self, crop):
        h = F.relu(self.conv(crop)).mean(dim=(2, 3))
        return self.normalize(self.fc(h))


class FaceNetFp32Norm(FaceNet):
    def normalize(self, z):
        z = z.float()
        return (z / (z.norm(dim=1, keepdim=True) + 1e-8)).half()


def loss_fn(model, batch):
    left, right, same = batch
    cosine = (model(left) * model(right)).sum(dim=1).float()
    return F.mse_loss(cosine, same)


def _case(seed: int, net: type[FaceNet]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(10):
        left, right = torch.rand(2, 6, 1, 8, 8).half()
        batches.append((left, right, torch.randint(0, 2, (6,)).float()))
    batches[4][1][3] = 0
    model = net().half()
    return Case(model, torch.optim.SGD(model.parameters(), lr=1e-2), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, FaceNet)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, FaceNetFp32Norm)


TRUTH = Truth(
    step=4,
    phase="forward",
    op="aten.div",
    module="",
    line="<marker>",
    cause="low_precision_underflow",
    split="dev",
)
