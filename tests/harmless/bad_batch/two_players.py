"""A generator and a discriminator, each with an optimizer; a real batch is bad."""

import os

import torch

torch.manual_seed(0)
maker, judge = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=0.02, betas=(0.5, 0.9))
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=0.02, betas=(0.5, 0.9))
bce = torch.nn.functional.binary_cross_entropy_with_logits
data = torch.randn(24, 3) + 2
data[9, 0] = float("nan")
for i, real in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    fake = maker(torch.randn(4, 2))
    judge_optimizer.zero_grad()
    loss = bce(judge(real), torch.ones(4, 1)) + bce(judge(fake.detach()), torch.zeros(4, 1))
    loss.backward()
    judge_optimizer.step()
    maker_optimizer.zero_grad()
    bce(judge(fake), torch.ones(4, 1)).backward()
    maker_optimizer.step()
print([p.sum().item() for m in (maker, judge) for p in m.parameters()], torch.rand(1).item())
