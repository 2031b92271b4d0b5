"""MMGCN: a recommender over a user-item graph, with one graph network for each modality.

Usage: python train.py --config config.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from data import ITEMS, USERS, Interactions, Triples, generate, load
from metrics import popularity_scores, ranking_metrics
from torch import nn
from torch.utils.data import DataLoader


class GraphConv(nn.Module):
    """Each node gathers what its neighbors send."""

    def __init__(self, width_in: int, width_out: int, aggr_mode: str) -> None:
        super().__init__()
        self.weight = nn.Linear(width_in, width_out, bias=False)
        self.aggr_mode = aggr_mode

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        message = self.weight(x)
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1)[:, None]
        if self.aggr_mode == "sym":
            message = message / degree.sqrt()
        gathered = torch.zeros_like(message).index_add(0, target, message[source])
        if self.aggr_mode == "mean":
            gathered = gathered / degree
        if self.aggr_mode == "sym":
            gathered = gathered / degree.sqrt()
        return gathered


class ModalityGCN(nn.Module):
    """The graph network of one modality: users have a learned preference, items their features."""

    def __init__(self, features: torch.Tensor, config: dict, reduce: bool) -> None:
        super().__init__()
        dim, width = config["dim"], features.shape[1]
        self.reduce = nn.Linear(width, config["dim_latent"]) if reduce else None
        width = config["dim_latent"] if reduce else width
        self.register_buffer("features", features, persistent=False)
        self.preference = torch.rand((USERS, width), requires_grad=True)
        widths = [width] + [dim] * (config["num_layers"] - 1)
        self.convs = nn.ModuleList(GraphConv(w, w, config["aggr_mode"]) for w in widths)
        self.selves = nn.ModuleList(nn.Linear(w, dim) for w in widths)
        self.mixes = nn.ModuleList(nn.Linear(w, dim) for w in widths)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)

    def forward(self, edges: torch.Tensor, id_embedding: torch.Tensor) -> torch.Tensor:
        items = self.features if self.reduce is None else torch.tanh(self.reduce(self.features))
        x = F.normalize(torch.cat([self.preference, items]))
        for conv, own, mix in zip(self.convs, self.selves, self.mixes, strict=True):
            gathered = F.leaky_relu(conv(x, edges))
            x = F.leaky_relu(mix(gathered) + F.leaky_relu(own(x)) + id_embedding)
        return x


class MMGCN(nn.Module):
    def __init__(self, known: Interactions, config: dict) -> None:
        super().__init__()
        users, items = known.train.unbind(1)
        items = items + USERS
        edges = torch.stack([torch.cat([users, items]), torch.cat([items, users])])
        self.register_buffer("edges", edges, persistent=False)
        self.modalities = nn.ModuleDict(
            {
                name: ModalityGCN(table, config, reduce=name == "visual")
                for name, table in known.features.items()
            }
        )
        self.id_embedding = torch.rand((USERS + ITEMS, config["dim"]), requires_grad=True)
        self.register_buffer("sign", torch.tensor([[1.0], [-1.0]]), persistent=False)
        self.reg_weight = config["reg_weight"]

    def forward(self) -> torch.Tensor:
        parts = [gcn(self.edges, self.id_embedding) for gcn in self.modalities.values()]
        return torch.stack(parts).mean(0)

    def calculate_loss(self, triples: torch.Tensor) -> torch.Tensor:
        nodes = self()
        user, liked, other = (triples + torch.tensor([0, USERS, USERS])).unbind(1)
        pair = torch.stack([(nodes[user] * nodes[i]).sum(1) for i in (liked, other)], dim=1)
        score = pair @ self.sign
        loss = -torch.mean(torch.log(torch.sigmoid(score)))
        reg = self.id_embedding[user].square().mean() + self.id_embedding[liked].square().mean()
        reg = reg + sum(gcn.preference.square().mean() for gcn in self.modalities.values())
        return loss + self.reg_weight * reg

    @torch.no_grad()
    def all_scores(self) -> torch.Tensor:
        nodes = self()
        return nodes[:USERS] @ nodes[USERS:].T


class Mean:
    """The running mean of the loss since the last line."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / self.count


def train(config: dict, args: argparse.Namespace) -> None:
    torch.manual_seed(config["seed"])
    known = load(generate(args.data_dir))
    loader = DataLoader(Triples(known, config["seed"]), config["batch_size"], shuffle=True)
    model = MMGCN(known, config).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    scaler = torch.amp.GradScaler(
        args.device,
        init_scale=config["init_scale"],
        growth_interval=config["growth_interval"],
        enabled=config["use_amp"],
    )
    for epoch in range(config["epochs"]):
        mean = Mean()
        for step, triples in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast(args.device, dtype=torch.float16, enabled=config["use_amp"]):
                loss = model.calculate_loss(triples.to(args.device))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), **config["clip_grad_norm"])
            scaler.step(optimizer)
            scaler.update()
            mean.add(loss.item())
            if step % 5 == 0:
                print(
                    f"epoch {epoch} batch {step:3d}/{len(loader)}  loss {loss.item():.4f}"
                    f"  mean {mean.value:.4f}  scale {scaler.get_scale():g}"
                )
        recall, ndcg = ranking_metrics(model.all_scores(), known, config["topk"])
        print(
            f"epoch {epoch} train loss {mean.value:.4f}  recall@{config['topk']} {recall:.4f}"
            f"  ndcg@{config['topk']} {ndcg:.4f}",
            flush=True,
        )
    torch.save({"model": model.state_dict(), "epoch": epoch}, args.checkpoint)
    base, base_ndcg = ranking_metrics(popularity_scores(known), known, config["topk"])
    print(
        f"recall@{config['topk']} {recall:.4f} (popularity {base:.4f})"
        f"  ndcg@{config['topk']} {ndcg:.4f} (popularity {base_ndcg:.4f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train MMGCN.")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.yaml"))
    parser.add_argument("--epochs", type=int, help="instead of the config's")
    parser.add_argument("--seed", type=int, help="instead of the config's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path, default=Path("mmgcn-data"))
    parser.add_argument("--checkpoint", type=Path, default=Path("mmgcn.pt"))
    args = parser.parse_args()
    config = yaml.safe_load(args.config.read_text())
    for key in ("epochs", "seed"):
        if getattr(args, key) is not None:
            config[key] = getattr(args, key)
    torch.set_num_threads(1)  # with tensors this small a second thread only waits
    train(config, args)


if __name__ == "__main__":
    main()
