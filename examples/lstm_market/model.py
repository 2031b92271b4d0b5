"""What the broken and the fixed training share: the network, the loss, MixUp and the metrics."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import BARS, CLASSES, FEATURES
from torch import nn


class DirectionLSTM(nn.Module):
    """Squashed projection, batch norm, LSTM with orthogonal weights, attention over the bars, a head."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.project = nn.Linear(FEATURES, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.lstm = nn.LSTM(hidden, hidden, config["num_layers"], batch_first=True)
        self.attention = nn.Linear(hidden, 1)
        self.head = nn.Sequential(nn.Dropout(config["dropout"]), nn.Linear(hidden, CLASSES))
        for name, weight in self.lstm.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(weight)

    def forward(self, sequence: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.tanh(self.project(sequence))
        x = self.norm(x.flatten(0, 1)).unflatten(0, (-1, BARS))
        states, _ = self.lstm(x)
        weights = self.attention(states).softmax(dim=1)
        return {"direction_logits": self.head((weights * states).sum(1))}


class FocalLoss(nn.Module):
    """Cross-entropy with less weight for what is already right; gamma 0 is plain cross-entropy."""

    def __init__(self, config: dict, class_weights: torch.Tensor) -> None:
        super().__init__()
        self.gamma = config["focal_gamma"] if config["use_focal_loss"] else 0.0
        self.smoothing = config["label_smoothing"]
        self.register_buffer("weights", class_weights if config["use_class_weights"] else None)

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ce = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        loss = (1 - torch.exp(-ce)) ** self.gamma * ce
        if self.weights is not None:
            loss = loss * self.weights[labels]
        return loss.mean()


def mixup(
    x: torch.Tensor, y: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Each sequence blended with another one of the batch; the labels of both, and the share."""
    if alpha <= 0:
        return x, y, 1.0
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    other = torch.randperm(len(x))
    return share * x + (1 - share) * x[other], y[other], share


@torch.no_grad()
def evaluate(model: nn.Module, criterion: nn.Module, loader: object) -> tuple[float, float, float]:
    """Loss, accuracy and balanced accuracy (mean recall of the classes; chance is 1/3)."""
    model.eval()
    outputs, labels = [], []
    for x, y in loader:
        outputs.append(model(x)["direction_logits"])
        labels.append(y)
    model.train()
    logits, y = torch.cat(outputs), torch.cat(labels)
    guess = logits.argmax(1)
    recalls = [(guess[y == c] == c).float().mean() for c in range(CLASSES)]
    accuracy = (guess == y).float().mean()
    return criterion(logits, y).item(), accuracy.item(), torch.stack(recalls).mean().item()
