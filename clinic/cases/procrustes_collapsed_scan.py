"""Point cloud registration by orthogonal Procrustes: the rotation is U V^T of the SVD of the cross
covariance. For a scan that collapsed to one point the covariance is zero, all singular values are
equal, and the gradient of the singular vectors divides by their differences."""

import torch
from torch import nn

from clinic.form import Case, Truth


def procrustes(source, target):
    covariance = (source - source.mean(1, keepdim=True)).transpose(1, 2) @ target
    u, _, vh = torch.linalg.svd(covariance)  # <- born here
    return u @ vh


def procrustes_damped(source, target):
    covariance = (source - source.mean(1, keepdim=True)).transpose(1, 2) @ target
    spread = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    is_flat = covariance.detach().abs().amax(dim=(1, 2), keepdim=True) < 1e-6
    u, _, vh = torch.linalg.svd(torch.where(is_flat, spread, covariance))
    return u @ vh


class Aligner(nn.Module):
    def __init__(self, solve) -> None:
        super().__init__()
        self.solve = solve
        self.weights = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, source, target):
        keypoints = source + 0.3 * self.weights(source)
        return keypoints @ self.solve(keypoints, target)


def loss_fn(model, batch):
    source, target = batch
    return nn.functional.mse_loss(model(source, target), target)


def _case(seed: int, solve) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(10):
        source = torch.randn(3, 12, 3)
        turn, _ = torch.linalg.qr(torch.randn(3, 3))
        if i == 6:
            source[1] = 0.0
        batches.append((source, source @ turn))
    model = Aligner(solve)
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, procrustes)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, procrustes_damped)


TRUTH = Truth(
    step=6,
    phase="backward",
    op="LinalgSvdBackward0",
    module="",
    line="<marker>",
    cause="degenerate_linalg",
    split="dev",
)
