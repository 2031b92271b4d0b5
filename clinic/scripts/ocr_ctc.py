"""A small CRNN for OCR with nn.CTCLoss; some labels are longer than the image is wide."""

import torch
from torch import nn

torch.manual_seed(5)
ALPHABET = 10
criterion = nn.CTCLoss(blank=0)


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 16, 3, padding=1)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, ALPHABET)

    def forward(self, images):
        features = torch.relu(self.conv(images)).transpose(1, 2)
        out, _ = self.rnn(features)
        return self.head(out).log_softmax(-1)


def batches():
    for step in range(40):
        width = 12 if step != 25 else 6
        images = torch.randn(8, 6, width)
        labels = torch.randint(1, ALPHABET, (8, 5))
        if step == 25:
            labels[:] = 3
        yield images, labels


crnn = CRNN()
optimizer = torch.optim.Adadelta(crnn.parameters(), lr=0.5)
history = []
for i, (images, labels) in enumerate(batches()):
    log_probs = crnn(images).transpose(0, 1)
    input_lengths = torch.full((8,), log_probs.size(0), dtype=torch.long)
    target_lengths = torch.full((8,), labels.size(1), dtype=torch.long)
    cost = criterion(log_probs, labels, input_lengths, target_lengths)
    crnn.zero_grad()
    cost.backward()
    optimizer.step()
    history.append(cost.item())
    if i % 10 == 0:
        print(f"[{i}] loss {cost.item():.4f}")
print(f"final loss {sum(history[-8:]) / 8:.4f}")
