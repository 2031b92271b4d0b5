"""Contrastive learning of audio and video with a hand-written LARS optimizer.

LARS scales each layer's step by the norm of its weights over the norm of its gradient. A batch of clips
without sound is all zeros for the audio branch, whose weight then has a gradient of exactly zero: the
trust ratio is infinite and infinity times zero is NaN.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

SILENT_BATCH = 9


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr: float, trust: float = 0.02, eps: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "trust": trust, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                local = group["trust"] * p.norm() / (p.grad.norm() + group["eps"])  # <- born here
                p.add_(local * p.grad, alpha=-group["lr"])


class AudioVisual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.audio = nn.Linear(16, 8, bias=False)
        self.video = nn.Linear(24, 8, bias=False)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, audio, video):
        heard = torch.tanh(self.audio(audio))
        seen = torch.tanh(self.video(video))
        return self.temperature * heard @ seen.T


def loss_fn(model, batch):
    logits = model(*batch)
    positives = torch.arange(len(logits))
    forward = nn.functional.cross_entropy(logits, positives)
    return 0.5 * (forward + nn.functional.cross_entropy(logits.T, positives))


def clips(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for index in range(num_batches):
        scene = torch.randn(6, 8)
        audio, video = scene.repeat(1, 2), scene.repeat(1, 3)
        batches.append((torch.zeros_like(audio) if index == SILENT_BATCH else audio, video))
    return batches


def _build(seed: int, eps: float) -> Case:
    torch.manual_seed(seed)
    model = AudioVisual()
    return Case(
        model=model,
        optimizer=LARS(model.parameters(), lr=1.0, eps=eps),
        loader=clips(16),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, eps=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, eps=1e-6)


TRUTH = Truth(
    step=9,
    phase="optimizer",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="optimizer_denominator",
    split="dev",
)
