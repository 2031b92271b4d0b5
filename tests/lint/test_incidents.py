"""An incident and a check say what lint would have shown before the run, and nothing where it is silent."""

import torch

from stayfinite import Guard, Incident
from stayfinite.lint import sentence_at
from stayfinite.preflight import check
from stayfinite.report.text import render

SAID = "lint: SF104 would have shown this line"


def flagged(model, batch):
    return torch.log(torch.sum(torch.exp(model(batch)), dim=1)).mean()


def silent(model, batch):
    return (model(batch) * batch.new_tensor(1e38) * 1e38).mean()


def incident_of(loss_fn):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.1)) as guard:
        return guard.step(loss_fn, torch.full((2, 4), 4000.0)).incident


def test_an_incident_names_the_code_of_its_line():
    incident = incident_of(flagged)
    assert incident.location.note == SAID
    assert SAID in render(incident)
    assert Incident.from_json(incident.to_json()).location.note == SAID


def test_an_incident_on_a_line_that_lint_does_not_know_says_nothing_of_it():
    incident = incident_of(silent)
    assert incident.location.line is not None
    assert "lint:" not in render(incident)


def build_with(loss_fn):
    def build():
        model = torch.nn.Linear(4, 3)
        batches = [torch.full((2, 4), 4000.0)] * 4
        return model, loss_fn, batches, torch.optim.SGD(model.parameters(), lr=0.1)

    return build


def test_a_check_names_the_code_of_the_line_that_is_about_to_fail():
    torch.manual_seed(0)
    found = check(build_with(flagged), only=["forward"]).findings
    assert [f.check for f in found if SAID in f.value] == ["forward/finite"]


def test_a_check_of_a_line_that_lint_does_not_know_says_nothing_of_it():
    found = check(build_with(silent), only=["forward"]).findings
    assert any(f.check == "forward/finite" and "test_incidents.py:" in f.value for f in found)
    assert not any("lint:" in f.value for f in found)


def test_a_code_of_the_second_tier_says_how_to_see_it(tmp_path):
    path = tmp_path / "net.py"
    path.write_text("import torch\ndef forward(log_var):\n    return torch.exp(log_var)\n")
    assert sentence_at(path, 3) == "lint: SF105 would have shown this line (with --pedantic)"
    assert sentence_at(path, 2) == sentence_at(path, None) == sentence_at(None, 3) == ""
