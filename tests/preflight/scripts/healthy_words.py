"""Sequences padded by a collate function, a dict as batch, a class as trainer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for i in range(96):
            length = int(torch.randint(3, 12, (), generator=g))
            words = torch.randint(1, 20, (length,), generator=g) + 20 * (i % 2)
            self.items.append((words, i % 2))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    words = nn.utils.rnn.pad_sequence([w for w, _ in items], batch_first=True)
    return {"words": words, "mask": words > 0, "label": torch.tensor([y for _, y in items])}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, words, mask):
        states, _ = self.rnn(self.words(words))
        mask = mask.unsqueeze(-1)
        return self.head((states * mask).sum(1) / mask.sum(1).clamp(min=1))


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(Sentences(), batch_size=16, shuffle=True, collate_fn=collate)

    def fit(self, epochs):
        for _ in range(epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                logits = self.model(batch["words"], batch["mask"])
                loss = nn.functional.cross_entropy(logits, batch["label"])
                loss.backward()
                self.optimizer.step()


if __name__ == "__main__":
    Trainer().fit(5)
