"""Image retrieval with generalized-mean pooling of exponent 2.5. The author dropped the clamp of the
original, as features were positive in all tests; a batch with negative features raises a negative
number to a fractional power."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class GeM(nn.Module):
    def __init__(self, p: float = 2.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, features):
        powered = features.pow(self.p)  # <- born here
        return F.adaptive_avg_pool2d(powered, 1).flatten(1) ** (1.0 / self.p)


class ClampedGeM(GeM):
    def forward(self, features):
        powered = features.clamp(min=1e-4).pow(self.p)
        return F.adaptive_avg_pool2d(powered, 1).flatten(1) ** (1.0 / self.p)


class RetrievalNet(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(3, 8, 3)
        self.pool = pool
        self.embed = nn.Linear(8, 6)
        nn.init.uniform_(self.trunk.weight, 0.0, 0.2)
        nn.init.constant_(self.trunk.bias, 0.5)

    def forward(self, image):
        return F.normalize(self.embed(self.pool(self.trunk(image))), dim=1)


def loss_fn(model, batch):
    anchor, positive, negative = (model(image) for image in batch)
    return F.triplet_margin_loss(anchor, positive, negative, margin=0.3)


def _case(seed: int, pool: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = [torch.rand(3, 4, 3, 6, 6) for _ in range(10)]
    batches[5] -= 0.9  # taken at night, below the black level
    model = RetrievalNet(pool)
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, GeM())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, ClampedGeM())


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten.pow",
    module="pool",
    line="<marker>",
    cause="domain_error",
    split="dev",
)
