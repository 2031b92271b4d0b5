"""Images of ten kinds, a frozen backbone, and the cache of its embeddings."""

import pathlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

NUM_CLASSES = 10
SIZE = 16
NUM_16BIT = 3  # the second camera stores 16 bits a pixel


def make_images(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten textures, dimmed and noisy. A few come from a camera with 16 bits a pixel."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(NUM_CLASSES, 1, 6, 6, generator=rng)
    textures = F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")[:, 0]
    labels = torch.arange(num) % NUM_CLASSES
    gain = 0.6 + 0.4 * torch.rand(num, 1, 1, generator=rng)
    noise = 0.15 * torch.randn(num, SIZE, SIZE, generator=rng)
    pixels = (textures[labels] * gain + noise).clamp(0, 1)
    depth = torch.full((num, 1, 1), 255.0)
    depth[torch.randperm(num, generator=rng)[:NUM_16BIT]] = 65535.0
    return (pixels * depth).round().int(), labels


class Backbone(nn.Module):
    """Stands in for the frozen DINOv2: patches, one transformer block, mean over the patches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, dim, kernel_size=4, stride=4)
        self.position = nn.Parameter(0.3 * torch.randn((SIZE // 4) ** 2, dim))
        self.block = nn.TransformerEncoderLayer(
            dim, nhead=4, dim_feedforward=2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.project = nn.Linear((SIZE // 4) ** 2 * dim, dim)

    def forward(self, images: Tensor) -> Tensor:
        images = (images - images.mean((1, 2), keepdim=True)) / images.std((1, 2), keepdim=True)
        tokens = self.patch(images[:, None]).flatten(2).transpose(1, 2) + self.position
        return self.project(self.block(tokens).flatten(1))


@torch.no_grad()
def compute_embeddings(images: Tensor, dim: int, use_fp16: bool) -> Tensor:
    torch.manual_seed(0)
    dtype = torch.float16 if use_fp16 else torch.float32
    backbone = Backbone(dim).eval().to(dtype)
    parts = [backbone(chunk.to(dtype)).float() for chunk in images.split(256)]
    return torch.cat(parts)


def load_embeddings(folder: pathlib.Path, config: dict, force_recompute: bool) -> dict:
    """The cached embeddings, or new ones. A cache is taken as it is: nothing in it is looked at."""
    path = folder / "embeddings_train.pt"
    if path.exists() and not force_recompute:
        print(f"embeddings: cached in {path}")
        return torch.load(path)
    images, labels = make_images(config["num_images"], config["data_seed"])
    embeddings = compute_embeddings(images, config["embedding_dim"], config["use_fp16"])
    # The nearest ones by distance; a sample's own distance is 0, so the first is itself.
    distances = torch.cdist(embeddings, embeddings)
    neighbors = distances.topk(config["num_neighbors"] + 1, largest=False).indices[:, 1:]
    saved = {"embeddings": embeddings, "labels": labels, "neighbors": neighbors}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(saved, path)
    print(f"embeddings: computed in {'fp16' if config['use_fp16'] else 'fp32'}, saved to {path}")
    return saved


class NeighborPairs(Dataset):
    """Each sample with one of its nearest neighbors: the two views of the clustering loss."""

    def __init__(self, saved: dict) -> None:
        self.embeddings, self.neighbors = saved["embeddings"], saved["neighbors"]

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pick = torch.randint(self.neighbors.shape[1], ()).item()
        return self.embeddings[index], self.embeddings[self.neighbors[index, pick]]
