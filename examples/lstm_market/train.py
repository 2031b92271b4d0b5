"""Train the direction classifier: down, flat or up from 60 bars of 110 features.

Usage: python train.py --config config.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import yaml
from data import Sequences, generate
from model import DirectionLSTM, FocalLoss, evaluate, mixup
from torch import nn
from torch.utils.data import DataLoader


def train(config: dict, args: argparse.Namespace) -> None:
    torch.manual_seed(config["seed"])
    data = Sequences(generate(args.data_dir, config["train_sequences"], seed=1))
    val_data = Sequences(generate(args.data_dir, config["val_sequences"], seed=2))
    loader = DataLoader(data, config["batch_size"], shuffle=True, drop_last=True)
    val_loader = DataLoader(val_data, config["batch_size"])
    model = DirectionLSTM(config).to(args.device)
    criterion = FocalLoss(config, data.class_weights()).to(args.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"]
    )
    scaler = torch.amp.GradScaler(
        args.device,
        init_scale=config["init_scale"],
        growth_interval=config["growth_interval"],
        enabled=config["use_amp"],
    )
    accumulation = config["accumulation_steps"]
    for epoch in range(config["epochs"]):
        for batch, (x, y) in enumerate(loader):
            x, y = x.to(args.device), y.to(args.device)
            alpha = 0.0
            if config["use_augmentation"]:
                x = x + config["noise_std"] * torch.randn_like(x)
                alpha = config["mixup_alpha"]
            x, other, share = mixup(x, y, alpha)
            with torch.autocast(args.device, dtype=torch.float16, enabled=config["use_amp"]):
                logits = model(x)["direction_logits"]
                loss = share * criterion(logits, y) + (1 - share) * criterion(logits, other)
            scaler.scale(loss / accumulation).backward()
            if (batch + 1) % accumulation == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), config["grad_clip_value"])
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                print(f"Train Epoch {epoch}: loss={loss.item():.4f}")
        val_loss, accuracy, balanced = evaluate(model, criterion, val_loader)
        print(
            f"Val Epoch {epoch}: loss={val_loss:.4f}  accuracy {accuracy:.3f}"
            f"  balanced accuracy {balanced:.3f}",
            flush=True,
        )
    torch.save({"model": model.state_dict(), "epoch": epoch}, args.checkpoint)
    majority = (val_data.y == data.y.mode().values).float().mean().item()
    print(
        f"accuracy {accuracy:.3f} (majority class {majority:.3f})"
        f"  balanced accuracy {balanced:.3f} (chance 0.333)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the direction classifier.")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.yaml"))
    parser.add_argument("--epochs", type=int, help="instead of the config's")
    parser.add_argument("--seed", type=int, help="instead of the config's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path, default=Path("lstm-market-data"))
    parser.add_argument("--checkpoint", type=Path, default=Path("lstm_market.pt"))
    args = parser.parse_args()
    config = yaml.safe_load(args.config.read_text())
    for key in ("epochs", "seed"):
        if getattr(args, key) is not None:
            config[key] = getattr(args, key)
    torch.set_num_threads(1)  # with tensors this small a second thread only waits
    train(config, args)


if __name__ == "__main__":
    main()
