"""Six correct trainings written with safe operators, small: each gives model, optimizers, batch, step."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Training:
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    batch: dict[str, torch.Tensor]
    losses: list[Callable[[nn.Module, dict], torch.Tensor]] = field(default_factory=list)
    """One for each optimizer."""

    def step(self) -> None:
        for optimizer, loss_fn in zip(self.optimizers, self.losses):
            optimizer.zero_grad()
            loss_fn(self.model, self.batch).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()


def _adam(model: nn.Module, rate: float = 1e-4) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(
        self, vocabulary: int = 50, width: int = 32, heads: int = 4, depth: int = 6
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def transformer(width: int = 32, length: int = 12, vocabulary: int = 50, rows: int = 2) -> Training:
    model = Transformer(vocabulary, width)

    def loss_fn(model: nn.Module, batch: dict) -> torch.Tensor:
        logits = model(batch["tokens"][:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())

    batch = {"tokens": torch.randint(vocabulary, (rows, length + 1))}
    return Training(model, [_adam(model)], batch, [loss_fn])


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in "ab")
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


def resnet() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        Residual(8), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    batch = {"images": torch.rand(4, 3, 8, 8), "labels": torch.randint(5, (4,))}

    def loss_fn(model: nn.Module, batch: dict) -> torch.Tensor:
        return F.cross_entropy(model(batch["images"]), batch["labels"])

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Training(model, [optimizer], batch, [loss_fn])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> Training:
    model = Recurrent()
    batch = {"series": torch.randn(4, 7, 4), "target": torch.randn(4, 1)}

    def loss_fn(model: nn.Module, batch: dict) -> torch.Tensor:
        return F.mse_loss(model(batch["series"]), batch["target"])

    return Training(model, [_adam(model)], batch, [loss_fn])


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        log_variance = log_variance.clamp(-10, 10)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


def vae() -> Training:
    model = Autoencoder()
    batch = {"x": torch.rand(5, 16)}

    def loss_fn(model: nn.Module, batch: dict) -> torch.Tensor:
        logits, mean, log_variance = model(batch["x"])
        rebuilt = F.binary_cross_entropy_with_logits(logits, batch["x"], reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return (rebuilt + divergence) / len(batch["x"])

    return Training(model, [_adam(model)], batch, [loss_fn])


def gan() -> Training:
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6), nn.Tanh())
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    batch = {"real": torch.rand(5, 6) * 2 - 1}

    def critic_loss(model: nn.Module, batch: dict) -> torch.Tensor:
        made = model["maker"](torch.randn(5, 4)).detach()
        good, bad = model["critic"](batch["real"]), model["critic"](made)
        return F.softplus(-good).mean() + F.softplus(bad).mean()

    def maker_loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return F.softplus(-model["critic"](model["maker"](torch.randn(5, 4)))).mean()

    return Training(model, [_adam(critic), _adam(maker)], batch, [critic_loss, maker_loss])


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 8), nn.GroupNorm(4, 8)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.time = nn.Linear(8, 8)
        self.leave = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        waves = torch.exp(-math.log(1e4) * torch.arange(4) / 4)
        angles = t[:, None].float() * waves
        code = torch.cat([angles.sin(), angles.cos()], -1)
        h = F.silu(self.norm1(self.enter(x))) + self.time(code)[:, :, None, None]
        return self.leave(F.silu(self.norm2(self.middle(h))) + h)


def diffusion() -> Training:
    model = Denoiser()
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
    batch = {"images": torch.rand(3, 1, 8, 8) * 2 - 1}

    def loss_fn(model: nn.Module, batch: dict) -> torch.Tensor:
        t = torch.randint(0, 100, (3,))
        noise = torch.randn_like(batch["images"])
        share = kept[t][:, None, None, None]
        x = share.sqrt() * batch["images"] + (1 - share).sqrt() * noise
        return F.mse_loss(model(x, t), noise)

    return Training(model, [_adam(model)], batch, [loss_fn])


TRAININGS = {
    "transformer": transformer,
    "resnet": resnet,
    "lstm": lstm,
    "vae": vae,
    "gan": gan,
    "diffusion": diffusion,
}
