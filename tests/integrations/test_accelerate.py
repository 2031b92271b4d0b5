"""Two lines with the real Accelerator."""

import pytest
import torch
from tests.integrations.watched import line_of, reported, under_run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite.patches.manager import table

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from stayfinite.integrations.accelerate import protect

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LINE = line_of(__file__, "# HERE")
QUICK = {"diagnose": False}


class Tracker(GeneralTracker):
    """Of one's own, as the docs of Accelerate describe it."""

    name = "rows"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.rows = []

    @property
    def tracker(self):
        return self.rows

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **kwargs):
        self.rows.append(values)


def parts():
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randn(40)
    x[21] = 0.0  # in batch 5 of 10
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, DataLoader(TensorDataset(x, y), batch_size=4)


def train(accelerator, model, optimizer, loader):
    gathered = []
    for xb, yb in loader:
        with accelerator.accumulate(model):
            unit = xb / xb.norm(dim=1, keepdim=True)  # HERE
            loss = (model(unit).squeeze(1) - yb).pow(2).mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        gathered.append(accelerator.gather(loss.detach()).mean().item())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return gathered


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("is_early", [True, False])
def test_two_lines_before_or_after_prepare(num_parts, is_early):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_parts)
    made = parts()
    if is_early:
        protection = protect(accelerator, settings=QUICK)
        made = accelerator.prepare(*made)
    else:
        made = accelerator.prepare(*made)
        protection = protect(accelerator, settings=QUICK)
    gathered = train(accelerator, *made)
    accelerator.end_training()
    (incident,) = protection.incidents
    assert (incident.event.step, incident.location.op) == (5, "aten.div")
    assert incident.location.line == LINE
    assert len(gathered) == 10
    assert table() == []


def test_the_incident_is_the_one_that_run_gives(tmp_path):
    def call():
        accelerator = Accelerator(cpu=True)
        return train(accelerator, *accelerator.prepare(*parts()))

    accelerator = Accelerator(cpu=True)
    with protect(accelerator) as protection:
        call()
    _, (other,) = under_run(call, tmp_path / "run")
    (mine,) = protection.incidents
    assert reported(mine) == reported(other)
    assert mine.diagnosis.cause == "zero_denominator"


def test_the_trackers_get_the_incident(tmp_path):
    tracker = Tracker()
    accelerator = Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("one")
    protect(accelerator, settings=QUICK)
    train(accelerator, *accelerator.prepare(*parts()))
    accelerator.end_training()
    assert {"stayfinite/incidents": 1} in tracker.rows


def test_an_exception_closes_it():
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ZeroDivisionError), protect(accelerator):
        made = accelerator.prepare(*parts())
        1 / 0
    del made
    assert table() == []
