"""A training as anybody writes it for Lightning, which starts the second rank by a command of its own."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        inputs, targets = batch
        length = inputs.square().sum(1)
        return (self.net(inputs) - targets).square().mean() + torch.log(length).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    x[37] = 0.0  # the sampler gives it to rank 1
    loader = DataLoader(TensorDataset(x, torch.randn(64, 1)), batch_size=4)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    total = sum(p.detach().double().square().sum().item() for p in module.parameters())
    os.write(1, f"rank {trainer.global_rank}: {total!r}\n".encode())
