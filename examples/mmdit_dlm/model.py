"""MMDiT: text and latents in two streams with weights of their own and one joint attention."""

import torch
import torch.nn.functional as F
from data import LATENT_DIM, LENGTH, NUM_LATENTS, VOCAB
from torch import Tensor, nn


class Stream(nn.Module):
    """The weights of one modality in one block, modulated by the time (adaLN-Zero)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def before(self, x: Tensor, time: Tensor) -> tuple[Tensor, list[Tensor]]:
        shift, scale, *rest = self.modulation(time)[:, None].chunk(6, dim=-1)
        return self.qkv(self.norm1(x) * (1 + scale) + shift), rest

    def after(self, x: Tensor, attended: Tensor, rest: list[Tensor]) -> Tensor:
        gate1, shift, scale, gate2 = rest
        x = x + gate1 * self.out(attended)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale) + shift)


class Block(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.text, self.latent = Stream(dim), Stream(dim)

    def forward(self, text: Tensor, latent: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        text_qkv, text_rest = self.text.before(text, time)
        latent_qkv, latent_rest = self.latent.before(latent, time)
        qkv = torch.cat([text_qkv, latent_qkv], 1).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        joint = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        attended_text, attended_latent = joint.split([text.shape[1], latent.shape[1]], 1)
        text = self.text.after(text, attended_text, text_rest)
        return text, self.latent.after(latent, attended_latent, latent_rest)


class MMDiT(nn.Module):
    """(masked tokens, noisy latents, t) -> (logits of the words, velocity of the latents)."""

    def __init__(self, dim: int, num_blocks: int, num_heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(VOCAB, dim)
        self.text_position = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.latent_in = nn.Linear(LATENT_DIM, dim)
        self.latent_position = nn.Parameter(0.02 * torch.randn(NUM_LATENTS, dim))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList([Block(dim, num_heads) for _ in range(num_blocks)])
        self.text_out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, VOCAB))
        self.latent_out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, LATENT_DIM))

    def forward(self, tokens: Tensor, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        rates = torch.arange(1, self.dim // 2 + 1, device=t.device)
        angles = t.float()[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        text = self.embed(tokens) + self.text_position
        latent = self.latent_in(latents) + self.latent_position
        for block in self.blocks:
            text, latent = block(text, latent, time)
        return self.text_out(text), self.latent_out(latent)
