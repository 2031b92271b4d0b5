"""A variant that is NaN from its first batch on: focal loss, class balance and MixUp together.

The data is in order (relative volume as its logarithm) and mixed precision is not to blame. The bars come in
the order of the day, quiet hours first, so no move is in the first batch; the classes are balanced over each
batch; and MixUp's targets are soft, so that the weight of a class that is not there meets a target of 0.

Usage: python train_first_batch.py --config config_first_batch.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from data import CLASSES, Sequences, generate
from model import DirectionLSTM, evaluate, mixup
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset


class BalancedFocalLoss(nn.Module):
    """Focal loss for soft targets; every class of the batch counts the same."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.gamma = config["focal_gamma"] if config["use_focal_loss"] else None
        self.is_balanced = config["use_class_weights"]

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """`target`: classes, or the share of each class where samples were mixed."""
        if self.gamma is None or not self.is_balanced or target.dim() == 1:
            return F.cross_entropy(logits, target)
        weights = len(target) / (CLASSES * target.sum(0))
        log_p = logits.float().log_softmax(-1)
        focal = (1 - log_p.exp()) ** self.gamma
        return -(weights * target * focal * log_p).sum(-1).mean()


def mixed(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """The batch and its targets, soft where samples were mixed."""
    x, other, share = mixup(x, y, alpha)
    if alpha <= 0:
        return x, y
    return x, share * F.one_hot(y, CLASSES) + (1 - share) * F.one_hot(other, CLASSES)


def by_time_of_day(data: Sequences) -> Subset:
    """Quiet hours first: the bars without a move."""
    return Subset(data, torch.argsort((data.y != 1).long(), stable=True).tolist())


def train(config: dict, args: argparse.Namespace) -> None:
    torch.manual_seed(config["seed"])
    data = Sequences(generate(args.data_dir, config["train_sequences"], seed=1), log_volume=True)
    val_data = Sequences(generate(args.data_dir, config["val_sequences"], seed=2), log_volume=True)
    loader = DataLoader(by_time_of_day(data), config["batch_size"], drop_last=True)
    val_loader = DataLoader(val_data, config["batch_size"])
    model, criterion = DirectionLSTM(config), BalancedFocalLoss(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scaler = torch.amp.GradScaler("cpu", init_scale=config["init_scale"], enabled=config["use_amp"])
    for epoch in range(config["epochs"]):
        for batch, (x, y) in enumerate(loader):
            x, target = mixed(x, y, config["mixup_alpha"] if config["use_augmentation"] else 0.0)
            with torch.autocast("cpu", dtype=torch.float16, enabled=config["use_amp"]):
                loss = criterion(model(x)["direction_logits"], target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), config["grad_clip_value"])
            scaler.step(optimizer)
            scaler.update()
            if batch % 5 == 0:
                print(f"Train Epoch {epoch}: {batch}/{len(loader)} loss={loss.item():.4f}")
        _, accuracy, balanced = evaluate(model, nn.CrossEntropyLoss(), val_loader)
        print(
            f"Val Epoch {epoch}: accuracy {accuracy:.3f}  balanced accuracy {balanced:.3f}",
            flush=True,
        )


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=here / "config_first_batch.yaml")
    parser.add_argument("--data-dir", type=Path, default=Path("lstm-market-data"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(yaml.safe_load(args.config.read_text()), args)


if __name__ == "__main__":
    main()
