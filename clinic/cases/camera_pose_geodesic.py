"""Camera pose regression with the geodesic distance between rotations. The trace of the relative
rotation of a nearly perfect prediction is, by rounding, a little above three, and acos of more than
one is NaN."""

import torch
from torch import nn

from clinic.form import Case, Truth


def quaternion_to_matrix(q):
    q = q / q.norm(dim=-1, keepdim=True)
    w, x, y, z = q.unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
    ]
    return torch.stack(rows, -2)


def geodesic(pred, target):
    relative = torch.einsum("bij,bkj->bik", pred, target)
    cosine = (torch.einsum("bii->b", relative) - 1) / 2
    return torch.acos(cosine).mean()  # <- born here


def geodesic_bounded(pred, target):
    relative = torch.einsum("bij,bkj->bik", pred, target)
    cosine = (torch.einsum("bii->b", relative) - 1) / 2
    return torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)).mean()


class PoseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.refine = nn.Linear(16, 4)
        nn.init.zeros_(self.refine.weight)
        nn.init.zeros_(self.refine.bias)

    def forward(self, coarse):
        return coarse + self.refine(self.backbone(coarse))


def _case(seed: int, distance) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        coarse = torch.randn(32, 4)
        noise = 0.0 if i == 10 else 0.5
        batches.append((coarse, coarse + noise * torch.randn(32, 4)))

    def loss_fn(model, batch):
        coarse, truth = batch
        return distance(quaternion_to_matrix(model(coarse)), quaternion_to_matrix(truth))

    model = PoseNet()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-6), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, geodesic)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, geodesic_bounded)


TRUTH = Truth(
    step=10,
    phase="loss",
    op="aten.acos",
    module=None,
    line="<marker>",
    cause="domain_error",
    split="held_out",
)
