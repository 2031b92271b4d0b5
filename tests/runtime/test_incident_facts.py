"""An incident says what only the running training knows: the parts of the loss, the gates, the cost."""

import torch
from torch import nn

from stayfinite import Guard
from stayfinite.investigate.evidence import loop_counters
from stayfinite.runtime.incident_facts import LastSave


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha_res = nn.Parameter(torch.tensor(3.0))
        self.alpha_pre = nn.Parameter(torch.tensor(0.25))
        self.phi = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.exp(self.alpha_res * x * self.phi).sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Gated()
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.gain * self.block(x)


def train(guard, model, optimizer, batches):
    """A loop with a loss of two parts, one of which it keeps in a dictionary."""
    for x in guard(batches):
        text = model(x)
        metrics = {"text_loss": text.item(), "latent_loss": 0.25, "lr": 0.1}
        loss = text + metrics["latent_loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def incident_of(tmp_path, saves=0):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    guard = Guard(model, optimizer)
    guard.watch("*.alpha_*", max_abs=1.0)
    with guard:
        for i in range(saves):
            train(guard, model, optimizer, [torch.ones(4)] * 2)
            torch.save(model.state_dict(), tmp_path / f"step{i}.pt")
        train(guard, model, optimizer, [torch.ones(4), torch.full((4,), 100.0)])
    return guard.incidents[0]


def test_the_parts_of_the_loss_are_named_as_the_script_names_them(tmp_path):
    evidence = incident_of(tmp_path).diagnosis.evidence
    (line,) = [e for e in evidence if "the losses in the script" in e]
    assert "loss inf" in line and "text_loss inf" in line and "latent_loss 0.25" in line
    assert "lr" not in line


def test_gates_are_reported_with_their_limits(tmp_path):
    incident = incident_of(tmp_path)
    assert incident.location.module == "block"
    (line,) = [e for e in incident.diagnosis.evidence if e.startswith("scalar parameters")]
    assert "block.alpha_res 3 (limit 1, exceeded)" in line
    assert "block.alpha_pre 0.25 (limit 1)" in line
    assert "gain" not in line and "phi" not in line


def test_the_steps_since_the_last_checkpoint_are_counted(tmp_path):
    evidence = incident_of(tmp_path, saves=2).diagnosis.evidence
    assert any("step1.pt, 1 step ago" in e and e.endswith("(saved every 2)") for e in evidence)
    evidence = incident_of(tmp_path).diagnosis.evidence
    assert any("no checkpoint has been written yet" in e for e in evidence)


def test_the_first_step_has_nothing_to_lose():
    assert LastSave().cost(0) == ""


def test_a_save_amid_an_iteration_has_its_step_in_it(tmp_path):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Guard(model, optimizer) as guard:
        for i, x in enumerate(guard([torch.ones(4)] * 5 + [torch.full((4,), 100.0)])):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            if i == 2:
                torch.save(model.state_dict(), tmp_path / "a.pt")  # holds 3 steps; 5 are made
    assert any("a.pt, 2 steps ago" in e for e in guard.incidents[0].diagnosis.evidence)


def test_a_loop_over_an_underscore_counts_nothing_that_is_reported(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("for _ in range(3):\n    for i in range(2):\n        x = 1\n")
    assert loop_counters._names(str(script), 3) == ("i",)
