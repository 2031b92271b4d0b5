"""Sequence classification with masked self-attention over padded reviews."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = 0


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(x.size(-1))
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return weights @ self.v(x)


class Classifier(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.attention = Attention(dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, tokens):
        mask = tokens != PAD
        h = self.attention(self.embed(tokens), mask)
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.out(pooled)


def reviews(n=256):
    g = torch.Generator().manual_seed(2)
    out = []
    for i in range(n):
        length = int(torch.randint(3, 12, (1,), generator=g))
        tokens = torch.randint(1, 50, (length,), generator=g)
        if i == 150:
            tokens = tokens[:0]  # the review was all emoji and the tokenizer dropped them
        out.append((tokens, int(tokens.sum() % 2 if len(tokens) else 0)))
    return out


def collate(items):
    tokens, labels = zip(*items)
    return pad_sequence(tokens, batch_first=True, padding_value=PAD), torch.tensor(labels)


def run():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(reviews(), batch_size=16, collate_fn=collate)
    for epoch in range(4):
        total = 0.0
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")
    print(f"final loss {total / len(loader):.4f}")


if __name__ == "__main__":
    run()
