"""A language model cast as a whole with `model.half()`, with the squared ReLU of the Primer in its
feed-forward layers. Once one hidden unit passes 256, as happens for the outlier channel of a rare
separator token, its square is beyond 65504."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x) ** 2  # <- born here


class BoundedSquaredReLU(nn.Module):
    def forward(self, x):
        return (F.relu(x.float()) ** 2).clamp(max=1e4).to(x.dtype)


class Block(nn.Module):
    def __init__(self, dim: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), act(), nn.Linear(2 * dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x + self.mlp(x))


class TinyLM(nn.Module):
    def __init__(self, act: type[nn.Module], vocab: int = 32, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, act) for _ in range(2))
        self.lm_head = nn.Linear(dim, vocab)
        with torch.no_grad():
            self.embed.weight[29, 3] = 2000.0

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


def loss_fn(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def _case(seed: int, act: type[nn.Module]) -> Case:
    torch.manual_seed(seed)
    batches = [torch.randint(0, 29, (4, 9)) for _ in range(10)]
    batches[6][2, 4] = 29
    model = TinyLM(act).half()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.05), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, SquaredReLU)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, BoundedSquaredReLU)


TRUTH = Truth(
    step=6,
    phase="forward",
    op="aten.pow",
    module="blocks.0.mlp.1",
    line="<marker>",
    cause="low_precision_overflow",
    split="held_out",
)
