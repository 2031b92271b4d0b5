"""A character LSTM with SGD and a far too high learning rate."""

import torch
import torch.nn as nn

torch.manual_seed(0)
text = "the quick brown fox jumps over the lazy dog. " * 60
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
config = {"lr": 60.0, "hidden": 48, "bptt": 30, "steps": 120}


class CharLSTM(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.w = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, vocab)
        self.hidden = hidden

    def forward(self, x):
        h = torch.zeros(len(x), self.hidden)
        outs = []
        for t in range(x.shape[1]):
            h = torch.relu(self.w(torch.cat([self.embed(x[:, t]), h], 1)))
            outs.append(self.out(h))
        return torch.stack(outs, 1)


model = CharLSTM(len(chars), config["hidden"])
optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
losses = []
for step in range(config["steps"]):
    start = torch.randint(0, len(data) - config["bptt"] - 1, (16,))
    x = torch.stack([data[s : s + config["bptt"]] for s in start])
    y = torch.stack([data[s + 1 : s + config["bptt"] + 1] for s in start])
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print(f"final loss {sum(losses[-10:]) / 10:.4f}")
