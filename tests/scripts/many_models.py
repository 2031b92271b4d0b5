import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 4)

    def forward(self, z):
        return self.out(z / z.norm(dim=-1, keepdim=True))  # HERE


torch.manual_seed(0)
x = torch.randn(40, 4)
x[26] = 0.0
encoder = nn.Linear(4, 3, bias=False)
decoder = Decoder()
probe = nn.Linear(3, 1)
main_optimizer = torch.optim.Adam(
    itertools.chain(encoder.parameters(), decoder.parameters()), lr=0.01
)
probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.01)
for (xb,) in DataLoader(TensorDataset(x), batch_size=8):
    z = encoder(xb)
    probe_loss = probe(z.detach()).pow(2).mean()
    probe_optimizer.zero_grad()
    probe_loss.backward()
    probe_optimizer.step()
    loss = (decoder(z) - xb).pow(2).mean() + 0.1 * z.abs().mean()
    main_optimizer.zero_grad()
    loss.backward()
    main_optimizer.step()
    print(f"{probe_loss.item():.6f} {loss.item():.6f}")
total = sum(p.sum().item() for m in (encoder, decoder, probe) for p in m.parameters())
print("done", f"{total:.6f}")
