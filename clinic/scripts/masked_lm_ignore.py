"""Masked language modelling: in a short batch no token is masked, and every label is ignored."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MASK = 1


class Lines(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        tokens = torch.randint(2, 30, (10,), generator=g)
        masked = torch.rand(10, generator=g) < (0.3 if not 120 <= i < 128 else 0.0)
        labels = torch.where(masked, tokens, torch.full_like(tokens, -100))
        return tokens.masked_fill(masked, MASK), labels


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        layer = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(24, 30)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


torch.manual_seed(0)
model = Encoder()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(3):
    total = 0.0
    loader = DataLoader(Lines(), batch_size=8)
    for tokens, labels in loader:
        optimizer.zero_grad()
        logits = model(tokens)
        loss = criterion(logits.view(-1, 30), labels.view(-1))
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
print(f"final loss {total / len(loader):.4f}")
