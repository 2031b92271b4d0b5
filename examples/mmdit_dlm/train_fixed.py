"""A latent diffusion language model: an MMDiT denoises masked words and noisy latents together."""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
import yaml
from data import MASK, VOCAB, make_corpus
from model import MMDiT
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Trainer(nn.Module):
    """The model and its loss: words by masked diffusion, latents by flow matching."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.model = MMDiT(**config["model"])
        self.dtype = DTYPES[config["training"]["dtype"]]
        self.weights = config["loss"]["text_loss_weight"], config["loss"]["latent_loss_weight"]
        self.decay = config["loss"]["ema_decay"]
        # The usual size of the text and the latent loss, so that neither drowns the other.
        self.register_buffer("loss_ema", torch.ones(2))

    def forward(self, tokens: Tensor, latents: Tensor) -> tuple[Tensor, dict[str, float]]:
        # In float32 and never quite 1: in bf16 one number of 512 is rounded up to it.
        t = 0.999 * torch.rand(len(tokens), device=tokens.device)
        text_loss, latent_loss = self.losses(tokens, latents, t)
        sizes = torch.stack([text_loss.detach(), latent_loss.detach()])
        self.loss_ema.lerp_(sizes, 1 - self.decay)
        text, latent = text_loss / self.loss_ema[0].clone(), latent_loss / self.loss_ema[1].clone()
        total = self.weights[0] * text + self.weights[1] * latent
        return total, {"text_loss": text_loss.item(), "latent_loss": latent_loss.item()}

    def losses(self, tokens: Tensor, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """t = 1 is the clean sample: no word is masked and there is no noise."""
        mask_prob = 1 - t
        text_mask = torch.rand(tokens.shape, device=t.device) < mask_prob[:, None]
        noise = torch.randn_like(latents)
        noisy = t[:, None, None] * latents + (1 - t)[:, None, None] * noise
        with torch.autocast(t.device.type, torch.bfloat16, enabled=self.dtype != torch.float32):
            logits, velocity = self.model(tokens.masked_fill(text_mask, MASK), noisy, t)
        # Few words are masked near t = 1; the bound on the likelihood weighs them up.
        weight = 1 / mask_prob
        per_word = F.cross_entropy(
            logits.float().view(-1, VOCAB), tokens.view(-1), reduction="none"
        ).view_as(tokens)
        weighted = per_word * text_mask * weight[:, None]
        text_loss = weighted.sum() / text_mask.sum().clamp(min=1)
        return text_loss, F.mse_loss(velocity.float(), latents - noise)


def cosine_with_warmup(optimizer: torch.optim.Optimizer, warmup: int, total: int):
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min((step - warmup) / (total - warmup), 1)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def batches(loader: DataLoader):
    while True:
        yield from loader


def train(trainer: Trainer, loader: DataLoader, config: dict, args: argparse.Namespace) -> None:
    options, settings = config["training"], config["optimizer"]
    optimizer = torch.optim.AdamW(
        trainer.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"]
    )
    scheduler = cosine_with_warmup(optimizer, options["warmup_steps"], options["num_steps"])
    step = restore(args.resume, trainer, optimizer, scheduler) if args.resume else 0
    num_micro = options["gradient_accumulation_steps"]
    log = (args.out / "training_log.jsonl").open("a" if args.resume else "w")
    data = batches(loader)
    while step < options["num_steps"]:
        loss = torch.zeros(())
        for _ in range(num_micro):
            tokens, latents = next(data)
            part, metrics = trainer(tokens.to(args.device), latents.to(args.device))
            (part / num_micro * config["loss"]["loss_scale"]).backward()
            loss += part.detach().cpu() / num_micro
        norm = nn.utils.clip_grad_norm_(trainer.parameters(), settings["grad_clip_norm"])
        if torch.isfinite(norm):
            optimizer.step()
        else:
            print(f"warning: the gradient norm is {norm.item()} at step {step}; left out")
        optimizer.zero_grad()
        row = {"step": step, "loss": loss.item(), **metrics, "grad_norm": norm.item()}
        log.write(json.dumps({**row, "lr": scheduler.get_last_lr()[0]}) + "\n")
        scheduler.step()
        step += 1
        if step % options["log_every"] == 0:
            shown = "  ".join(
                f"{name} {value:.4f}" for name, value in row.items() if name != "step"
            )
            print(f"step {step:3d}  {shown}")
        if step % options["save_every"] == 0:
            save(args.out / f"step_{step:04d}.pt", step, trainer, optimizer, scheduler)
    log.close()


def save(path: pathlib.Path, step: int, trainer, optimizer, scheduler) -> None:
    states = {"model": trainer, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({"step": step} | {k: v.state_dict() for k, v in states.items()}, path)


def restore(path: pathlib.Path, trainer, optimizer, scheduler) -> int:
    saved = torch.load(path)
    for key, part in (("model", trainer), ("optimizer", optimizer), ("scheduler", scheduler)):
        part.load_state_dict(saved[key])
    print(f"resumed from {path} at step {saved['step']}")
    return saved["step"]


@torch.no_grad()
def evaluate(trainer: Trainer, tokens: Tensor, latents: Tensor, train_tokens: Tensor) -> str:
    """Half of the words masked, the latents half noise: how many masked words come back?"""
    rng = torch.Generator().manual_seed(0)
    mask = torch.rand(tokens.shape, generator=rng) < 0.5
    noisy = 0.5 * latents + 0.5 * torch.randn(latents.shape, generator=rng)
    t = torch.full((len(tokens),), 0.5)
    logits, _ = trainer.model(tokens.masked_fill(mask, MASK), noisy, t)
    accuracy = (logits.argmax(-1) == tokens)[mask].float().mean()
    usual = train_tokens.mode(0).values.expand_as(tokens)
    baseline = (usual == tokens)[mask].float().mean()
    return f"masked words restored: {accuracy:.3f}  (the usual word of each place: {baseline:.3f})"


def main() -> None:
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, default=here / "config.yaml")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small are faster without threads
    config = yaml.safe_load(args.config.read_text())
    if args.num_steps is not None:
        config["training"]["num_steps"] = args.num_steps
    args.out.mkdir(parents=True, exist_ok=True)

    tokens, latents = make_corpus(config["data"]["num_train"], seed=1)
    torch.manual_seed(args.seed)
    trainer = Trainer(config).to(args.device)
    loader = DataLoader(
        TensorDataset(tokens, latents),
        batch_size=config["training"]["train_batch_size"],
        shuffle=True,
    )
    train(trainer, loader, config, args)
    test = make_corpus(config["data"]["num_test"], seed=2)
    print(evaluate(trainer.cpu(), *test, tokens))


if __name__ == "__main__":
    main()
