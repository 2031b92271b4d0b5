import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
real = torch.randn(36, 2) * 0.5 + 1
real[21] = 400.0
generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
d_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
for (xb,) in DataLoader(TensorDataset(real), batch_size=6):
    noise = torch.randn(len(xb), 2)
    fake = generator(noise)
    d_loss = nn.functional.binary_cross_entropy(critic(xb / 100), torch.ones(len(xb), 1))
    d_loss = d_loss + nn.functional.binary_cross_entropy(
        critic(fake.detach()), torch.zeros(len(xb), 1)
    )
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    spread = xb.max().item()
    g_loss = -torch.log(critic(fake) * float(spread < 100)).mean()  # HERE
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
    print(f"{d_loss.item():.6f} {g_loss.item():.6f}")
total = sum(p.sum().item() for m in (generator, critic) for p in m.parameters())
print("done", f"{total:.6f}")
