"""A masked policy whose state has no legal action: the probabilities of the distribution sum to 0."""

import torch
from torch import nn
from torch.distributions import Categorical


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5), nn.Softmax(-1))
    batches = []
    for i in range(13):
        legal = (torch.rand(8, 5) > 0.3).float()
        legal[:, 0] = 1
        if i == 7:
            legal[6] = 0
        batches.append((torch.randn(8, 6), legal, torch.zeros(8).long(), torch.randn(8)))

    def loss_fn(model, batch):
        obs, legal, action, adv = batch
        probs = model(obs)
        dist = Categorical(probs=probs * legal, validate_args=False)
        return -(dist.log_prob(action) * adv).mean()

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), batches, loss_fn


model, optimizer, batches, loss_fn = build()
losses = []
for _ in range(3):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"final loss {sum(losses[-10:]) / 10:.4f}")
