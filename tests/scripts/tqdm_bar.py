import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
tokens = torch.randint(1, 20, (60, 6))
tokens[::3, 4:] = 0
tokens[41] = 0
labels = torch.randint(2, (60,))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.score = nn.Linear(8, 1)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        score = self.score(x).squeeze(-1).masked_fill(tokens == 0, float("-inf"))
        weight = F.softmax(score, -1)  # HERE
        return self.out((weight.unsqueeze(-1) * x).sum(1))


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for batch in tqdm(DataLoader(TensorDataset(tokens, labels), batch_size=10), desc="train"):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tqdm.write(f"{loss.item():.6f}")
print("done", f"{model.out.bias.sum().item():.6f}")
