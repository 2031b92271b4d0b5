"""A Fourier layer with complex weights and a complex optimizer state."""

import torch
from torch import nn

from clinic.form import Case


class SpectralLayer(nn.Module):
    def __init__(self, num_modes: int) -> None:
        super().__init__()
        self.num_modes = num_modes
        self.weight = nn.Parameter(torch.randn(num_modes, dtype=torch.cfloat))

    def forward(self, signal):
        spectrum = torch.fft.rfft(signal)
        kept = spectrum[:, : self.num_modes] * self.weight
        return torch.fft.irfft(kept, n=signal.shape[1])


def loss_fn(model, batch):
    signal, shifted = batch
    return nn.functional.mse_loss(model(signal), shifted)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    signals = torch.randn(16, 6, 16)
    model = SpectralLayer(7)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-2),
        loader=[(s, s.roll(1, dims=1)) for s in signals],
        loss_fn=loss_fn,
    )
