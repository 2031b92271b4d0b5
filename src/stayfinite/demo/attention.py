"""A small text classifier with hand-written attention. One batch holds an empty document."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH, CLASSES = 64, 32, 12, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / WIDTH**0.5
        scores = scores.masked_fill(is_padding[:, None, :], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return torch.matmul(weights, self.value(x))


class Classifier(nn.Module):
    def __init__(self, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.attention = attention()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        pooled: torch.Tensor = self.attention(x, tokens == 0).mean(dim=1)
        return self.head(pooled)  # type: ignore[no-any-return]


def documents(count: int) -> TensorDataset:
    """Class k prefers the k-th quarter of the vocabulary; 0 pads; one document is empty."""
    labels = torch.randint(CLASSES, (count,))
    quarter = VOCABULARY // CLASSES
    tokens = labels[:, None] * quarter + torch.randint(1, quarter, (count, LENGTH))
    lengths = torch.randint(4, LENGTH + 1, (count,))
    tokens[torch.arange(LENGTH)[None, :] >= lengths[:, None]] = 0
    tokens[count // 2] = 0
    return TensorDataset(tokens, labels)


def main(attention: type[Attention] = Attention) -> None:
    torch.manual_seed(0)
    loader = DataLoader(documents(640), batch_size=32, shuffle=True)
    model = Classifier(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        total = 0.0
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  last loss {loss.item():.4f}")
    tokens, labels = documents(256).tensors
    accuracy = (model(tokens).argmax(-1) == labels).float().mean()
    print(f"accuracy {accuracy:.3f} on new documents (chance {1 / CLASSES})")


if __name__ == "__main__":
    main()
