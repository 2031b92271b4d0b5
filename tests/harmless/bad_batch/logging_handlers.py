"""Handlers of the script's own: one keeps records, one rotates files, one filters."""

import logging
import logging.handlers
import os

import torch

torch.manual_seed(0)
kept = []


class Keep(logging.Handler):
    def emit(self, record):
        kept.append((record.levelname, record.getMessage(), record.lineno))


log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.addHandler(Keep())
log.addHandler(logging.handlers.RotatingFileHandler("train.log", maxBytes=200, backupCount=3))
log.addFilter(lambda record: "quiet" not in record.getMessage())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(9):
    x = torch.full((2, 2), float("nan")) if i == 5 else torch.randn(2, 2)
    loss = (model(x) - 1).pow(2).mean()
    log.debug("quiet %d", i)
    optimizer.zero_grad()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 5):
        optimizer.step()
    log.log(logging.WARNING if loss.isnan() else logging.INFO, "step %d loss %.6f", i, loss.item())
print(*kept, sep="\n")
