"""One bad batch on the device made in Python, under each form of the guard."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import python_device as here
import torch
from torch import nn

from stayfinite import Guard, Settings

form, deferred = sys.argv[1], sys.argv[2] == "deferred"
here.Factories().__enter__()
assert torch.accelerator.current_accelerator().type == "pydev"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
for module in model.modules():
    for name, p in list(module._parameters.items()):
        if p is not None:
            setattr(module, name, nn.Parameter(here.OnDevice(p.detach().clone())))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=deferred)
batches = [here.OnDevice(torch.rand(4, 3) + 0.5) for _ in range(6)]
batches[3].host[1, 1] = -1.0


def loss_of(model, x):
    noise = torch.rand((), generator=here.backend.generator)
    return (model(torch.log(x)) * (1 + noise)).pow(2).mean()  # HERE


# To the judge of the loop's body the device is a program of the user's, which may do anything.
settings = Settings(deferred=deferred, replay="full" if form == "loop" else "auto")
guard = Guard(model, optimizer, settings=settings)
if form == "step":
    for x in batches:
        guard.step(loss_of, x)
else:
    for x in guard(batches):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
guard.close()
print(json.dumps({
    "steps": [i.event.step for i in guard.incidents],
    "op": guard.incidents[0].location.op,
    "line": guard.incidents[0].location.line,
    "cause": guard.incidents[0].diagnosis.cause,
    "device": guard.incidents[0].location.chain[0].inputs[0].stats.device,
    "finite": all(bool(torch.isfinite(p.detach().host).all()) for p in model.parameters()),
}))
