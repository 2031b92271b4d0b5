"""The same classifier with a softmax that knows of masks: an empty document gets no weight."""

import torch

from stayfinite.demo.attention import WIDTH, Attention, main
from stayfinite.numerics import masked_softmax


class MaskedAttention(Attention):
    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / WIDTH**0.5
        weights = masked_softmax(scores, ~is_padding[:, None, :])
        return torch.matmul(weights, self.value(x))


if __name__ == "__main__":
    main(MaskedAttention)
