"""Sentences of a small grammar, each with the latents that a frozen VAE gives it."""

import torch
import vae
from torch import Tensor

NUM_TOPICS = 8
LENGTH = 16
THE, DOT, MASK = 0, 1, 2
WORDS_PER_CLASS = 2  # adjectives, nouns and verbs of a topic
VOCAB = 3 + NUM_TOPICS * 3 * WORDS_PER_CLASS
NUM_LATENTS, LATENT_DIM = 8, 16


def make_corpus(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, latents)"""
    tokens = make_tokens(num, seed)
    return tokens, vae.load(VOCAB, LATENT_DIM).encode(tokens)


def make_tokens(num: int, seed: int) -> Tensor:
    """Two clauses "ADJ NOUN VERB the ADJ ADJ NOUN ." on one topic."""
    rng = torch.Generator().manual_seed(seed)
    topic = torch.randint(NUM_TOPICS, (num, 1), generator=rng)
    word = torch.randint(WORDS_PER_CLASS, (num, LENGTH), generator=rng)
    # Which class of word stands where; -1 and -2 are the article and the full stop.
    kind = torch.tensor([0, 1, 2, -1, 0, 0, 1, -2] * 2)
    tokens = 3 + (topic * 3 + kind.clamp(min=0)) * WORDS_PER_CLASS + word
    tokens[:, kind == -1], tokens[:, kind == -2] = THE, DOT
    return tokens
