"""Scripted functions call builtins of torch; TorchScript knows these by the function itself."""

import torch


@torch.jit.script
def slope(y: torch.Tensor, x: torch.Tensor):
    found = torch.autograd.grad([y.sum()], [x])[0]
    assert found is not None
    return found


@torch.jit.script
def trained(y: torch.Tensor):
    torch.autograd.backward([y.sum()])
    return y


x = torch.ones(2, requires_grad=True)
print(slope(x * 3, x).tolist(), trained(x * 2).tolist(), x.grad.tolist())
model = torch.nn.Linear(2, 1)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
    optimizer.zero_grad()
    (model(batch) - model.bias).pow(2).mean().backward()
    optimizer.step()
print(model.weight.tolist(), torch.jit.script(slope).code)
