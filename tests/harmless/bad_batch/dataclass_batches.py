"""Batches are a dataclass that a collate function of the script's own makes, with a cursor inside."""
# slow

import os
from dataclasses import dataclass, field

import torch


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    notes: list = field(default_factory=list)

    def note(self, text):
        self.notes.append(text)
        return self


num_collated = 0


def collate(samples):
    global num_collated
    num_collated += 1
    return Batch(torch.stack([s for s, _ in samples]), torch.tensor([t for _, t in samples]))


torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
data = [(torch.randn(3), i % 2) for i in range(18)]
data[7][0][1] = float("nan")
seen = []
for i, batch in enumerate(torch.utils.data.DataLoader(data, batch_size=3, collate_fn=collate)):
    seen.append(batch.note(i).note(batch.x.shape[0]))
    loss = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
    optimizer.zero_grad()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 2):
        optimizer.step()
print(num_collated, [b.notes for b in seen], [p.sum().item() for p in model.parameters()])
