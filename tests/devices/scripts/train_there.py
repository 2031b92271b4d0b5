"""One bad batch on the device made in Python, under each form of the guard and each kind of optimizer."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import python_device as here
import torch
from torch import nn

from stayfinite import Guard, Settings

KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "capturable": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True, foreach=False),
    "fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
}


def loss_of(model, x):
    noise = torch.rand((), generator=here.backend.generator)
    return (model(torch.log(x)) * (1 + noise)).pow(2).mean()  # HERE


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            setattr(module, name, nn.Parameter(here.OnDevice(p.detach().clone())))
    batches = [here.OnDevice(torch.rand(4, 3) + 0.5) for _ in range(6)]
    batches[3].host[1, 1] = -1.0
    return model, batches


def train(form, kind, deferred):
    model, batches = make()
    optimizer = KINDS[kind](model.parameters())
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
    found = guard.incidents[0]
    return {
        "steps": [i.event.step for i in guard.incidents],
        "op": found.location.op,
        "line": found.location.line,
        "cause": found.diagnosis.cause,
        "device": found.location.chain[0].inputs[0].stats.device,
        "finite": all(bool(torch.isfinite(p.detach().host).all()) for p in model.parameters()),
    }


with here.Factories():
    assert torch.accelerator.current_accelerator().type == "pydev"
    done = {}
    for case in json.loads(sys.argv[1]):
        done[" ".join(map(str, case))] = train(*case)
    print(json.dumps(done))
