"""TEMI: clustering of image embeddings by several self-distilled heads."""

import argparse
import pathlib

import torch
import yaml
from data import NUM_CLASSES, NeighborPairs, load_embeddings
from metrics import accuracy, nmi
from model import StudentTeacher
from torch import Tensor, nn
from torch.utils.data import DataLoader


def beta_mi(p1: Tensor, p2: Tensor, pk: Tensor, beta: float) -> Tensor:
    """Pointwise mutual information of two soft assignments."""
    beta_emi = (((p1 * p2) ** beta) / pk).sum(dim=-1)
    return beta_emi.log()


class TemiLoss(nn.Module):
    """One loss a head: the two views should share a cluster, and all clusters should be used."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        heads, clusters = config["num_heads"], config["num_clusters"]
        teacher_temp = torch.tensor(config["teacher_temp"]).expand(heads).clone()
        self.register_buffer("teacher_temp", teacher_temp.view(heads, 1, 1))
        self.warmup_temp = config["warmup_teacher_temp"]
        self.register_buffer("pk", torch.full((heads, 1, clusters), 1 / clusters))
        self.student_temp, self.beta = config["student_temp"], config["beta"]
        self.momentum = config["marginal_momentum"]

    def forward(self, s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor, progress: float) -> Tensor:
        """`progress` runs from 0 to 1 over the training; the teachers cool down with it."""
        temp = self.warmup_temp ** (1 - progress) * self.teacher_temp**progress
        p1, p2 = ((s / self.student_temp).softmax(-1) for s in (s1, s2))
        q1, q2 = ((t / temp).softmax(-1) for t in (t1, t2))
        self.pk.lerp_((q1 + q2).mean(1, keepdim=True) / 2, 1 - self.momentum)
        weight = (q1 * q2).sum(-1)
        weight = weight / weight.sum(-1, keepdim=True)
        mi = beta_mi(p1, q2, self.pk, self.beta) + beta_mi(p2, q1, self.pk, self.beta)
        return -(weight * mi).sum(-1) / 2


def train(model: StudentTeacher, criterion: TemiLoss, loader: DataLoader, config: dict) -> Tensor:
    optimizer = torch.optim.AdamW(
        model.student.parameters(), lr=config["lr"], weight_decay=config["weight_decay"]
    )
    step = 0
    for epoch in range(config["epochs"]):
        progress = epoch / max(config["epochs"] - 1, 1)
        for a, b in loader:
            losses = criterion(*model(a, b), progress)
            optimizer.zero_grad()
            losses.sum().backward()
            for head in model.student.heads:  # each head is a training of its own
                nn.utils.clip_grad_norm_(head.parameters(), config["clip_grad"])
            optimizer.step()
            model.update_teacher()
            step += 1
        print(f"epoch {epoch}  step {step:3d}  loss of each head:", *(f"{x:8.4f}" for x in losses))
    return losses.detach()


@torch.no_grad()
def evaluate(model: StudentTeacher, saved: dict, losses: Tensor, num_clusters: int) -> str:
    best = int(losses.argmin())
    predicted = model.teacher(saved["embeddings"])[best].argmax(-1)
    num = max(num_clusters, NUM_CLASSES)
    scores = f"accuracy {accuracy(predicted, saved['labels'], num):.3f}"
    scores += f"  NMI {nmi(predicted, saved['labels'], num):.3f}"
    return f"best head {best}: {scores}  (chance {1 / NUM_CLASSES:.3f})"


def main() -> None:
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, default=here / "config.yaml")
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path("data/embeddings"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("temi.pt"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force-recompute", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small are faster without threads
    config = yaml.safe_load(args.config.read_text())
    if args.epochs is not None:
        config["epochs"] = args.epochs

    saved = load_embeddings(args.data_dir, config, args.force_recompute)
    torch.manual_seed(args.seed)
    model, criterion = StudentTeacher(config), TemiLoss(config)
    loader = DataLoader(
        NeighborPairs(saved), batch_size=config["batch_size"], shuffle=True, drop_last=True
    )
    losses = train(model, criterion, loader, config)
    torch.save({"model": model.state_dict(), "criterion": criterion.state_dict()}, args.out)
    print(evaluate(model, saved, losses, config["num_clusters"]))


if __name__ == "__main__":
    main()
