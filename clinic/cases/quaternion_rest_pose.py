"""A network that predicts unit quaternions, scored by the angle 2 acos(|<q, p>|). The dot product is
clamped to one, so that the forward is always finite; at exactly one the derivative of acos is not."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class OrientationNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, landmarks):
        # Landmarks at the rest pose are all zero: start from "no rotation".
        rest = torch.tensor([1.0, 0.0, 0.0, 0.0])
        present = landmarks.abs().amax(dim=1, keepdim=True).clamp(max=1.0)
        return F.normalize(rest + present * self.mlp(landmarks), dim=-1)


def rotation_angle(q, p):
    cosine = (q * p).sum(dim=-1).abs().clamp(max=1.0)
    return 2 * torch.acos(cosine)  # <- born here


def rotation_angle_bounded(q, p):
    cosine = (q * p).sum(dim=-1).abs().clamp(max=1.0 - 1e-5)
    return 2 * torch.acos(cosine)


def _case(seed: int, angle) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(14):
        landmarks = torch.randn(8, 9)
        target = F.normalize(torch.randn(8, 4), dim=-1)
        if i == 10:
            landmarks[6] = 0
            target[6] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        batches.append((landmarks, target))

    def loss_fn(model, batch):
        landmarks, target = batch
        return angle(model(landmarks), target).mean()

    model = OrientationNet()
    return Case(model, torch.optim.AdamW(model.parameters(), lr=2e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, rotation_angle)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, rotation_angle_bounded)


TRUTH = Truth(
    step=10,
    phase="backward",
    op="AcosBackward0",
    module=None,
    line="<marker>",
    cause="singular_gradient",
    split="dev",
)
