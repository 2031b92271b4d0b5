"""A small VAE over pairs of words: it gives the latents that the diffusion model is trained on.

`python vae.py` trains it (a few seconds) and writes vae.npz, which lies here already: a frozen, finished
encoder, as latent diffusion has it. Nothing of it is broken.
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FILE = pathlib.Path(__file__).with_name("vae.npz")
WORDS = 2  # to a latent vector


class PairVAE(nn.Module):
    def __init__(self, vocab: int, latent_dim: int, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.Linear(WORDS * width, 2 * latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, width), nn.GELU(), nn.Linear(width, WORDS * vocab)
        )
        # What makes the latents of the corpus unit scale, measured when the training was over.
        self.register_buffer("shift", torch.zeros(latent_dim))
        self.register_buffer("scale", torch.ones(latent_dim))

    def posterior(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latent of each pair of words."""
        mean, log_var = self.encoder(self.embed(pairs).flatten(-2)).chunk(2, -1)
        return mean, log_var.clamp(-8, 8)

    def loss(self, pairs: Tensor, kl_weight: float) -> Tensor:
        mean, log_var = self.posterior(pairs)
        latent = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        logits = self.decoder(latent).unflatten(-1, (WORDS, -1))
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        return F.cross_entropy(logits.flatten(0, -2), pairs.flatten()) * WORDS + kl_weight * kl

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> Tensor:
        """The latents of sentences, one vector for each two words."""
        mean, _ = self.posterior(tokens.unflatten(-1, (-1, WORDS)))
        return (mean - self.shift) / self.scale


def load(vocab: int, latent_dim: int) -> PairVAE:
    vae = PairVAE(vocab, latent_dim)
    with np.load(FILE) as saved:
        vae.load_state_dict({name: torch.from_numpy(saved[name]) for name in saved.files})
    return vae.eval().requires_grad_(False)


def train(tokens: Tensor, vocab: int, latent_dim: int, num_steps: int = 800) -> PairVAE:
    torch.manual_seed(0)
    vae = PairVAE(vocab, latent_dim)
    optimizer = torch.optim.Adam(vae.parameters(), lr=5e-3)
    pairs = tokens.unflatten(-1, (-1, WORDS)).flatten(0, 1)
    for _ in range(num_steps):
        batch = pairs[torch.randint(len(pairs), (256,))]
        optimizer.zero_grad()
        vae.loss(batch, kl_weight=0.02).backward()
        optimizer.step()
    mean, _ = vae.posterior(pairs)
    vae.shift.copy_(mean.detach().mean(0))
    vae.scale.copy_(mean.detach().std(0))
    logits = vae.decoder(mean).unflatten(-1, (WORDS, -1))
    print(f"words restored from their latent: {(logits.argmax(-1) == pairs).float().mean():.3f}")
    return vae


def main() -> None:
    from data import LATENT_DIM, VOCAB, make_tokens

    vae = train(make_tokens(4096, seed=3), VOCAB, LATENT_DIM)
    np.savez(FILE, **{name: value.numpy() for name, value in vae.state_dict().items()})


if __name__ == "__main__":
    main()
