"""Trains ResTran-mHC to read license plates from several frames each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from data import ALPHABET, LENGTH, Plates, rarity, write_plates
from model import HyperConnection, ResTranMHC
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "config.yaml")
    parser.add_argument("--epochs", type=int, help="instead of the config's")
    parser.add_argument("--lr", type=float, help="instead of the config's learning_rate")
    parser.add_argument("--mhc-n", type=int, help="instead of the config's mhc_n")
    parser.add_argument("--seed", type=int, help="instead of the config's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    return parser.parse_args()


def settings(args: argparse.Namespace) -> dict[str, Any]:
    config = yaml.safe_load(args.config.read_text())
    given = {
        "epochs": args.epochs,
        "learning_rate": args.lr,
        "mhc_n": args.mhc_n,
        "seed": args.seed,
    }
    return config | {key: value for key, value in given.items() if value is not None}


def loaders(config: dict[str, Any], folder: Path) -> tuple[DataLoader, DataLoader]:
    for name, seed in (("train", 1), ("val", 2)):
        if not (folder / f"{name}.npz").exists():
            write_plates(folder / f"{name}.npz", config[f"num_{name}"], config["noise"], seed)
    train = Plates(folder / "train.npz", config["augmentation_level"])
    sampler = None
    if config["oversample_rare_chars"]:
        sampler = WeightedRandomSampler(rarity(train), len(train))
    shuffle = sampler is None
    return (
        DataLoader(train, config["batch_size"], shuffle=shuffle, sampler=sampler, drop_last=True),
        DataLoader(Plates(folder / "val.npz"), batch_size=64),
    )


class Run:
    """All that a checkpoint holds."""

    def __init__(self, config: dict[str, Any], steps: int, hyper: type, device: str) -> None:
        self.config, self.steps = config, steps  # steps of an epoch
        self.model = ResTranMHC(n=config["mhc_n"], tau=config["mhc_tau"], hyper=hyper).to(device)
        gates, others = [], []
        for name, parameter in self.model.named_parameters():
            is_gate = any(word in name for word in (".alpha_", ".phi_", ".b_"))
            (gates if is_gate else others).append(parameter)
        lr = config["learning_rate"]
        self.rates = [lr, lr * config["mhc_lr_mult"]]
        self.optimizer = torch.optim.AdamW(
            [{"params": p, "lr": r} for p, r in zip((others, gates), self.rates)],
            weight_decay=config["weight_decay"],
        )
        self.scaler = torch.amp.GradScaler(device, enabled=config["use_amp"])
        self.epoch = 0
        self.schedule()

    def schedule(self) -> None:
        """One cycle over the epochs that are left."""
        left = (self.config["epochs"] - self.epoch) * self.steps
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=self.rates, total_steps=left
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        torch.save(state, path)

    def resume(self, path: Path) -> None:
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.epoch = state["epoch"]


def train_epoch(run: Run, loader: DataLoader, config: dict[str, Any], device: str) -> float:
    run.model.train()
    total = 0.0
    for frames, targets in loader:
        frames, targets = frames.to(device), targets.to(device)
        run.optimizer.zero_grad()
        with torch.autocast(device, enabled=config["use_amp"]):
            log_probs = run.model(frames)
        columns = torch.full((len(frames),), log_probs.shape[1])
        lengths = torch.full((len(frames),), LENGTH)
        loss = nn.functional.ctc_loss(log_probs.float().transpose(0, 1), targets, columns, lengths)
        run.scaler.scale(loss).backward()
        run.scaler.unscale_(run.optimizer)
        nn.utils.clip_grad_norm_(run.model.parameters(), config["grad_clip"])
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.scheduler.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def validate(run: Run, loader: DataLoader, device: str) -> tuple[float, float]:
    """The share of plates read without a mistake, and of characters in their place."""
    run.model.eval()
    plates = characters = count = 0
    for frames, targets in loader:
        best = run.model(frames.to(device)).argmax(dim=-1).cpu()
        for columns, target in zip(best, targets):
            read = torch.unique_consecutive(columns)
            read = read[read > 0]
            plates += torch.equal(read, target)
            if len(read) == LENGTH:
                characters += int((read == target).sum())
            count += 1
    return plates / count, characters / (count * LENGTH)


def main(hyper: type = HyperConnection, resume: Callable[[Run, Path], None] = Run.resume) -> None:
    args = arguments()
    config = settings(args)
    train, val = loaders(config, args.data_dir)
    torch.manual_seed(config["seed"])
    run = Run(config, len(train), hyper, args.device)
    if args.resume:
        resume(run, args.resume)
        print(f"resumed from {args.resume} after epoch {run.epoch}")
    best = 0.0
    while run.epoch < config["epochs"]:
        loss = train_epoch(run, train, config, args.device)
        run.epoch += 1
        plates, characters = validate(run, val, args.device)
        lr = run.optimizer.param_groups[0]["lr"]
        print(
            f"Ep {run.epoch}/{config['epochs']}: loss={loss:.3f}, lr={lr:.2e}, "
            f"val plates={plates:.3f}, characters={characters:.3f}"
        )
        run.save(args.results / f"epoch_{run.epoch:02d}.pth")
        run.save(args.results / "last.pth")
        if plates > best:
            best = plates
            run.save(args.results / "best.pth")
    print(
        f"plate accuracy {plates:.3f}, character accuracy {characters:.3f} "
        f"(chance {1 / len(ALPHABET):.3f})"
    )


if __name__ == "__main__":
    main()
