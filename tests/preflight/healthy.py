"""Trainings with nothing wrong: every group of `stayfinite check` must let them pass.

Each function is a target as a user would write it: it returns model, loss_fn, loader, optimizer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Target = tuple[nn.Module, Any, DataLoader, Any]


def loader(*tensors: Tensor, batch_size: int = 16) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=True)


def clusters(num: int = 128, width: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Points round one center for each class: easy to learn, balanced."""
    labels = torch.arange(num) % classes
    centers = torch.randn(classes, width)
    return centers[labels] + 0.5 * torch.randn(num, width), labels


def classify(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def mlp() -> Target:
    torch.manual_seed(0)
    x, y = clusters()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model.append(nn.Linear(32, 4))
    return model, classify, loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-3)


def cnn_batchnorm() -> Target:
    torch.manual_seed(1)
    y = torch.arange(96) % 3
    x = torch.randn(96, 3, 12, 12) + y.view(-1, 1, 1, 1) * 0.5

    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    model = nn.Sequential(*block(3, 8), nn.MaxPool2d(2), *block(8, 16))
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return model, classify, loader(x, y), optimizer


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 24, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def lstm_classifier() -> Target:
    torch.manual_seed(2)
    y = torch.arange(96) % 3
    x = torch.randn(96, 20, 6).cumsum(1) * 0.2 + y.view(-1, 1, 1)
    model = Lstm()
    return model, classify, loader(x, y), torch.optim.AdamW(model.parameters(), lr=2e-3)


class Lm(nn.Module):
    """Tied embedding, causal mask, pre-norm: the usual small language model."""

    def __init__(self, vocabulary: int = 60, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(32, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


def transformer_lm() -> Target:
    torch.manual_seed(3)
    model = Lm()
    text = (torch.arange(17) * 3 + torch.randint(60, (96, 1))) % 60

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        tokens = batch[0]
        return F.cross_entropy(m(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    return model, loss_fn, loader(text), optimizer


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8))
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encode(x).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var.clamp(-10, 10))
        return self.decode(z), mean, log_var


def vae() -> Target:
    torch.manual_seed(4)
    model = Vae()
    x = torch.randn(96, 4) @ torch.randn(4, 20) + 0.1 * torch.randn(96, 20)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        back, mean, log_var = m(batch[0])
        log_var = log_var.clamp(-10, 10)
        kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).mean()
        return F.mse_loss(back, batch[0]) + 0.1 * kl

    return model, loss_fn, loader(x), torch.optim.Adam(model.parameters(), lr=1e-3)


class Gcn(nn.Module):
    """Symmetric normalization with self loops: no degree is ever zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        adjacency = edges + torch.eye(edges.shape[-1])
        scale = adjacency.sum(-1).rsqrt()
        adjacency = scale.unsqueeze(-1) * adjacency * scale.unsqueeze(-2)
        return self.second(adjacency @ F.relu(self.first(adjacency @ x)))


def gcn() -> Target:
    torch.manual_seed(5)
    model = Gcn()
    y = torch.arange(10).repeat(64, 1) % 3
    x = torch.randn(64, 10, 8) + y.unsqueeze(-1) * 0.7
    edges = (torch.rand(64, 10, 10) < 0.3).float()
    edges = torch.maximum(edges, edges.mT)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0], batch[1]).flatten(0, 1), batch[2].flatten())

    return model, loss_fn, loader(x, edges, y), torch.optim.Adam(model.parameters(), lr=5e-3)


class Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0]).log_softmax(-1)


def ctc() -> Target:
    torch.manual_seed(6)
    model = Ctc()
    x = torch.randn(64, 30, 8)
    frames = torch.randint(22, 31, (64,))
    targets = torch.randint(1, 11, (64, 7))
    lengths = torch.randint(3, 8, (64,))
    criterion = nn.CTCLoss(zero_infinity=True)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        x, frames, targets, lengths = batch
        return criterion(m(x).transpose(0, 1), targets, frames, lengths)

    return (
        model,
        loss_fn,
        loader(x, frames, targets, lengths),
        torch.optim.Adam(model.parameters(), lr=1e-3),
    )


def autoencoder() -> Target:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(24, 12), nn.ELU(), nn.Linear(12, 4), nn.ELU())
    model.extend([nn.Linear(4, 12), nn.ELU(), nn.Linear(12, 24)])
    x = torch.randn(96, 4) @ torch.randn(4, 24) / 2

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.smooth_l1_loss(m(batch[0]), batch[0])

    return model, loss_fn, loader(x), torch.optim.RMSprop(model.parameters(), lr=1e-3)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(200, 16, sparse=True)
        self.head = nn.Linear(16, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words))


def embedding_bag() -> Target:
    torch.manual_seed(8)
    model = Bag()
    y = torch.arange(96) % 2
    words = torch.randint(100, (96, 12)) + 100 * y.unsqueeze(1)
    return model, classify, loader(words, y), torch.optim.SGD(model.parameters(), lr=0.1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.middle(F.max_pool2d(skip, 2)))], 1))


def unet() -> Target:
    torch.manual_seed(9)
    model = UNet()
    x = torch.randn(64, 1, 12, 12)
    mask = (F.avg_pool2d(x, 3, 1, 1) > 0).float()

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        logits, mask = m(batch[0]), batch[1]
        part = torch.sigmoid(logits)
        overlap = 2 * (part * mask).sum() + 1.0
        dice = 1 - overlap / (part.sum() + mask.sum() + 1.0)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice

    return model, loss_fn, loader(x, mask), torch.optim.AdamW(model.parameters(), lr=1e-3)


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)]
        )
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        out = x
        for i, expert in enumerate(self.experts):
            share = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return self.head(self.norm(out))


def moe() -> Target:
    torch.manual_seed(10)
    model = Moe()
    x, y = clusters()
    return model, classify, loader(x, y), torch.optim.AdamW(model.parameters(), lr=1e-3)


class Residual(nn.Module):
    """The last scale of each branch starts at zero: the block starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        nn.init.zeros_(self.body[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def resnet_zero_init() -> Target:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
    model.extend([Residual(12) for _ in range(4)])
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)])
    y = torch.arange(64) % 4
    x = torch.randn(64, 3, 10, 10) + y.view(-1, 1, 1, 1) * 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return model, classify, loader(x, y), optimizer


class Block(nn.Module):
    """Attention and MLP, each scaled by a LayerScale of 1e-4."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.gamma1 = nn.Parameter(torch.full((width,), 1e-4))
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.gamma2 = nn.Parameter(torch.full((width,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.gamma1 * self.attention(y, y, y, need_weights=False)[0]
        return x + self.gamma2 * self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.position = nn.Parameter(torch.randn(1, 10, 32) * 0.02)
        self.blocks = nn.Sequential(*[Block(32) for _ in range(3)])
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_layerscale() -> Target:
    torch.manual_seed(12)
    model = Vit()
    y = torch.arange(64) % 4
    x = torch.randn(64, 3, 12, 12) + y.view(-1, 1, 1, 1) * 0.5
    return model, classify, loader(x, y), torch.optim.AdamW(model.parameters(), lr=5e-4)


class Padded(nn.Module):
    """Sequences of different lengths; the pooling guards against a row without any token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        x = self.layers(self.tokens(tokens), src_key_padding_mask=is_padding)
        keep = (~is_padding).unsqueeze(-1)
        return self.head((x * keep).sum(1) / keep.sum(1).clamp(min=1))


def padded_encoder() -> Target:
    torch.manual_seed(13)
    model = Padded()
    y = torch.arange(96) % 2
    lengths = torch.randint(4, 13, (96, 1))
    is_padding = torch.arange(12) >= lengths
    tokens = (torch.randint(1, 25, (96, 12)) + 24 * y.unsqueeze(1)).masked_fill(is_padding, 0)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        tokens, is_padding, y = batch
        return F.cross_entropy(m(tokens, is_padding), y)

    return (
        model,
        loss_fn,
        loader(tokens, is_padding, y),
        torch.optim.AdamW(model.parameters(), lr=5e-4),
    )


class Lora(nn.Module):
    """A frozen layer and a low-rank change to it, one factor of which starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def lora() -> Target:
    torch.manual_seed(14)
    x, y = clusters()
    model = nn.Sequential(Lora(nn.Linear(16, 32)), nn.ReLU(), Lora(nn.Linear(32, 32)), nn.ReLU())
    model.append(nn.Linear(32, 4))
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, classify, loader(x, y), torch.optim.AdamW(trained, lr=1e-3)


def bf16_mlp() -> Target:
    torch.manual_seed(15)
    x, y = clusters()
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 4))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = m(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    return model, loss_fn, loader(x, y), torch.optim.AdamW(model.parameters(), lr=1e-3)


def contrastive() -> Target:
    torch.manual_seed(16)
    center = torch.randn(96, 16)
    a, b = center + 0.2 * torch.randn(96, 16), center + 0.2 * torch.randn(96, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        u, v = (F.normalize(m(part), dim=-1) for part in batch)
        return F.cross_entropy(u @ v.T / 0.2, torch.arange(len(u)))

    return model, loss_fn, loader(a, b), torch.optim.Adam(model.parameters(), lr=1e-3)


def fp16_scaler() -> dict[str, Any]:
    torch.manual_seed(17)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = m(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    return {
        "model": model,
        "loss_fn": loss_fn,
        "loader": loader(*clusters()),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "scaler": torch.amp.GradScaler("cpu"),
    }


def derivatives() -> Target:
    """A differential equation as the loss: gradients of gradients."""
    torch.manual_seed(18)
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
    model.append(nn.Linear(24, 1))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_(True)
        u = m(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + u).square().mean() + (u - torch.sin(x)).square().mean()

    return model, loss_fn, loader(torch.rand(96, 1)), torch.optim.Adam(model.parameters(), lr=1e-3)


def critic() -> Target:
    """A Wasserstein critic: a loss below zero, a penalty on the gradient at a fresh leaf."""
    torch.manual_seed(19)
    model = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        real, fake = batch[0], torch.randn_like(batch[0])
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(m(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return m(fake).mean() - m(real).mean() + 10 * penalty

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    return model, loss_fn, loader(torch.randn(96, 4) + 1), optimizer


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(1 + 0.3 * torch.randn(9, dtype=torch.cfloat))
        self.head = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=16))


def complex_and_lazy() -> Target:
    torch.manual_seed(20)
    model = Spectral()
    return model, classify, loader(*clusters()), torch.optim.Adam(model.parameters(), lr=1e-3)


TARGETS = {
    f.__name__: f
    for f in (
        mlp, cnn_batchnorm, lstm_classifier, transformer_lm, vae, gcn, ctc, autoencoder,
        embedding_bag, unet, moe, resnet_zero_init, vit_layerscale, padded_encoder, lora,
        bf16_mlp, contrastive, fp16_scaler, derivatives, critic, complex_and_lazy,
    )
}  # fmt: skip
