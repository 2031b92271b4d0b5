"""A LightningModule trained by the real Trainer; one sample makes a logarithm of a negative."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Rates(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self.net(x).squeeze(-1) - torch.log(y)).pow(2).mean()  # HERE

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(0)
x, y = torch.randn(160, 4), torch.rand(160) + 0.5
y[75] = -1.0
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = Rates()
trainer = L.Trainer(max_epochs=2, max_steps=36, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
trainer.fit(model, loader)
print("steps", trainer.global_step)
print("finite", all(torch.isfinite(p).all().item() for p in model.parameters()))
