"""Failures that look alike from outside are distinguished by what the loss was made of."""

import torch

from stayfinite import Guard

LOSSES = {
    "aten.log": lambda out: torch.log(out * 0 - 1).mean(),
    "aten.sqrt": lambda out: torch.sqrt(out * 0 - 1).mean(),
    "aten.div": lambda out: ((out * 0) / (out - out)).mean(),
    "": lambda out: out.square().mean(),
}
ORDER = ["", "aten.log", "aten.sqrt", "aten.div"] * 4


def test_three_causes_with_one_symptom_are_three_incidents_each_named_rightly():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer) as guard:
        for step, batch in enumerate(guard([torch.randn(2, 4) for _ in ORDER])):
            optimizer.zero_grad()
            loss = LOSSES[ORDER[step]](model(batch))
            loss.backward()
            optimizer.step()
    assert [i.location.op for i in guard.incidents] == [op for op in ORDER if op]
    first = [i.id for i in guard.incidents[:3]]
    assert [i.same_as for i in guard.incidents[3:9]] == first * 2
