"""A character model of 10.7 million parameters (6 layers of width 384), trained on text that it makes up.

python benchmarks/scripts/gpt.py [--steps N] [--batch N]
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WORDS = [
    "the",
    "a",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "and",
    "then",
    "sleeps",
    "under",
    "old",
    "tree",
    "while",
    "rain",
    "falls",
]
BLOCK, WIDTH, LAYERS, HEADS = 64, 384, 6, 6


class Text(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, num_words: int = 20_000) -> None:
        text = " ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (num_words,)))
        self.letters = sorted(set(text))
        number = {c: i for i, c in enumerate(self.letters)}
        self.ids = torch.tensor([number[c] for c in text])

    def __len__(self) -> int:
        return len(self.ids) - BLOCK - 1

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.ids[i : i + BLOCK], self.ids[i + 1 : i + BLOCK + 1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.ln1(x)).split(c, dim=2)
        q, k, v = (p.view(b, t, HEADS, c // HEADS).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, num_letters: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(num_letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_letters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))  # type: ignore[no-any-return]


def rate(step: int, warm_up: int = 100, steps: int = 5000) -> float:
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / (steps - warm_up))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(1337)
    text = Text()
    model = GPT(len(text.letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loader = DataLoader(text, batch_size=args.batch, shuffle=True, drop_last=True)
    for step, (x, y) in enumerate(loader):
        if step == args.steps:
            break
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
