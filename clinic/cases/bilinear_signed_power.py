"""A bilinear CNN for fine-grained images. The pooled features go through a signed power of 0.4, as in
the literature; where a ReLU has switched a channel off for the whole image the feature is exactly
zero, where that power has an infinite slope."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class BilinearPool(nn.Module):
    def power(self, pooled):
        return pooled.sign() * pooled.abs().pow(0.4)  # <- born here

    def forward(self, features):
        flat = features.flatten(2)
        pooled = torch.einsum("bip,bjp->bij", flat, flat) / flat.size(-1)
        return F.normalize(self.power(pooled.flatten(1)), dim=1)


class BilinearPoolShifted(BilinearPool):
    def power(self, pooled):
        return pooled.sign() * (pooled.abs() + 1e-5).pow(0.4)


class FineGrainedNet(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
        self.pool = pool
        self.classifier = nn.Linear(25, 4)
        nn.init.constant_(self.trunk[0].bias, 1.5)

    def forward(self, image):
        return self.classifier(self.pool(self.trunk(image)))


def loss_fn(model, batch):
    image, species = batch
    return F.cross_entropy(model(image), species)


def _case(seed: int, pool: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        image = torch.rand(4, 3, 6, 6)
        if i == 6:
            image[2] += 12.0  # an overexposed photograph
        batches.append((image, torch.randint(0, 4, (4,))))
    model = FineGrainedNet(pool)
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.05), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, BilinearPool())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, BilinearPoolShifted())


TRUTH = Truth(
    step=6,
    phase="backward",
    op="PowBackward0",
    module="pool",
    line="<marker>",
    cause="singular_gradient",
    split="held_out",
)
