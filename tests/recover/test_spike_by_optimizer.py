"""Two optimizers have losses of different sizes; each is compared with its own."""

import torch
from torch import nn

from stayfinite import Guard, Settings


def test_a_gan_s_two_losses_are_no_spikes_of_one_another():
    torch.manual_seed(0)
    small, large = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-4) for m in (small, large)]
    models = {"small": small, "large": large}
    with Guard(models, optimizers, settings=Settings(diagnose=False)) as guard:
        for x in guard([torch.randn(8, 2) for _ in range(60)]):
            for model, optimizer, size in zip(models.values(), optimizers, (1e-3, 50.0)):
                optimizer.zero_grad()
                (size * (model(x).pow(2).mean() + 1)).backward()
                optimizer.step()
        assert guard.warnings == []
        x = 40 * torch.ones(8, 2)
        for batch in guard([x]):
            optimizers[0].zero_grad()
            (1e-3 * (small(batch).pow(2).mean() + 1)).backward()
            optimizers[0].step()
    assert [w.kind for w in guard.warnings] == ["spike"]
