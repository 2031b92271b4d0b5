"""Sentences of a small grammar, each with the latent that a frozen encoder gives it."""

import torch
from torch import Tensor

NUM_TOPICS = 8
LENGTH = 16
THE, DOT, MASK = 0, 1, 2
WORDS_PER_CLASS = 2  # adjectives, nouns and verbs of a topic
VOCAB = 3 + NUM_TOPICS * 3 * WORDS_PER_CLASS
NUM_LATENTS, LATENT_DIM = 8, 16


def make_corpus(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, latents): two clauses "ADJ NOUN VERB the ADJ ADJ NOUN ." on one topic."""
    rng = torch.Generator().manual_seed(seed)
    topic = torch.randint(NUM_TOPICS, (num, 1), generator=rng)
    word = torch.randint(WORDS_PER_CLASS, (num, LENGTH), generator=rng)
    # Which class of word stands where; -1 and -2 are the article and the full stop.
    kind = torch.tensor([0, 1, 2, -1, 0, 0, 1, -2] * 2)
    tokens = 3 + (topic * 3 + kind.clamp(min=0)) * WORDS_PER_CLASS + word
    tokens[:, kind == -1], tokens[:, kind == -2] = THE, DOT
    return tokens, encode(tokens)


def encode(tokens: Tensor) -> Tensor:
    """Eight latent vectors a sentence, one for each two words: a fixed random map of its words."""
    table = torch.randn(VOCAB, LATENT_DIM, generator=torch.Generator().manual_seed(0))
    return 2.0 * table[tokens].unflatten(1, (NUM_LATENTS, -1)).mean(2)
