"""Answers that were once given and were not true: each one is gone."""

from dataclasses import replace

import pytest
import torch
from clinic.backing import unbacked
from torch import nn

from clinic import form, measure
from stayfinite import Guard
from stayfinite.diagnose.evidence import Evidence
from stayfinite.diagnose.rank import conclude, consider
from stayfinite.diagnose.registry import Finding, Rule
from stayfinite.records import Event, Fix, Location

DATA = """
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8)
"""


class Counting(nn.Module):
    """Its fifth call is bad, and its sixth is not: it depends on a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        y = self.fc(x)
        if self.num_calls == 5:
            y = y / torch.zeros(1)
        return y


def test_chance_is_named_after_two_replays_and_the_count_that_may_explain_it_is_reported():
    net = Counting()
    with Guard(net, torch.optim.SGD(net.parameters(), lr=0.01)) as guard:
        for _ in range(6):
            guard.step(lambda m, b: m(b).square().mean(), torch.ones(8, 4))
    (incident,) = guard.incidents
    assert incident.diagnosis.cause == "hardware_or_nondeterminism"
    assert incident.diagnosis.confidence <= 0.7
    assert "num_calls" in incident.diagnosis.summary
    assert "twice" in incident.location.note


def test_a_value_that_the_script_writes_is_no_hardware_failure(watch):
    script = (
        DATA
        + """
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
def weighted(p, y):
    w = torch.ones_like(p)
    w[3] = float("nan")  # HERE
    return (w * (p - y) ** 2).mean()
for x, y in loader:
    loss = weighted(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
"""
    )
    watched = watch(script)
    incident = watched.first
    assert incident.diagnosis.cause is None
    assert incident.location.line == watched.line("# HERE")
    assert "The script itself writes nan" in incident.diagnosis.summary
    assert "The script itself writes nan" in watched.done.err


def test_an_absurd_rate_is_not_called_ordinary(watch):
    script = (
        DATA
        + """
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e10)
for x, y in loader:
    loss = ((net(x) - y) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    )
    watched = watch(script)
    assert watched.first.diagnosis.cause == "lr_divergence"
    assert "ordinary" not in watched.done.err


def test_a_loss_without_a_bound_is_not_blamed_on_the_resume(watch):
    script = """
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, "c.pt")
net.load_state_dict(torch.load("c.pt")["model"])
opt = torch.optim.SGD(net.parameters(), lr=0.5)
x = torch.randn(32, 4)
for step in range(60):
    loss = -(net(x) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    first = watch(script).first
    assert first.diagnosis.cause == "lr_divergence"
    assert "falls without end" in first.diagnosis.summary
    assert first.diagnosis.confidence <= 0.5
    assert "resume_mismatch" not in [c.cause for c in first.diagnosis.candidates]


def test_weights_that_ran_away_before_they_were_known_are_no_old_memory():
    net = nn.Linear(4, 1)
    with torch.no_grad():
        net.weight.fill_(3e30)
    with Guard(net, torch.optim.SGD(net.parameters(), lr=0.01)) as guard:
        guard.step(lambda m, b: m(b).square().mean(), torch.ones(8, 4))
    causes = [c.cause for c in guard.incidents[0].diagnosis.candidates]
    assert "uninitialized_memory" not in causes


def test_what_an_earlier_part_of_the_iteration_made_is_found_without_a_loader(watch):
    script = """
net, value = nn.Linear(4, 4), nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
for it in range(6):
    with torch.no_grad():
        seen = torch.randn(8, 4)
        if it == 3:
            seen[:] = 1.0
        gain = value(seen)[:, 0]
        gain = (gain - gain.mean()) / gain.std()  # HERE
    for k in range(2):
        loss = (net(seen)[:, 0] * gain).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
    watched = watch(script)
    assert watched.first.location.line == watched.line("# HERE")
    assert watched.first.location.op == "aten.div"
    assert watched.first.diagnosis.cause == "zero_denominator"


def test_clipping_is_not_advised_to_those_who_clip(watch):
    script = (
        DATA
        + """
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e25)
for x, y in loader:
    loss = ((net(x) - y) ** 2).mean()
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
"""
    )
    first = watch(script).first
    assert first.diagnosis.cause == "lr_divergence"
    assert not any("clip" in fix.title for fix in first.diagnosis.fixes)


def test_a_search_is_replayed_where_it_failed(watch):
    script = """
w = nn.Parameter(torch.tensor([0.3, 3.0]))
opt = torch.optim.LBFGS([w], lr=1.0, max_iter=20)
x = torch.rand(16, 2)
y = x @ torch.tensor([-3.5, -1.0])
def closure():
    opt.zero_grad()
    scale = torch.sqrt(w[0])  # HERE
    loss = ((scale * x[:, 0] + w[1] * x[:, 1] - y) ** 2).mean() * 10
    loss.backward()
    return loss
for step in range(2):
    opt.step(closure)
print(w.tolist())
"""
    watched = watch(script)
    assert watched.first.location.line == watched.line("# HERE")
    assert watched.first.diagnosis.cause == "domain_error"
    assert watched.done.out.strip() == str(torch.tensor([0.3, 3.0]).tolist())


@pytest.mark.parametrize("search", ["", ', line_search_fn="strong_wolfe"'])
def test_a_search_that_goes_too_far_is_reported_with_how_far_it_went(watch, search):
    script = f"""
net = nn.Linear(2, 1)
opt = torch.optim.LBFGS(net.parameters(), lr=1e6, max_iter=20{search})  # MADE
x = torch.randn(16, 2)
def closure():
    opt.zero_grad()
    loss = (net(x) ** 8 - 1).square().mean()
    loss.backward()
    return loss
opt.step(closure)
"""
    found = watch(script).incidents
    if search:
        assert not any(i.diagnosis.cause == "exploding_gradient" for i in found)
        return
    first = found[0]
    assert first.diagnosis.cause == "lr_divergence" and first.diagnosis.confidence <= 0.9
    assert "the largest weight at its start is" in first.diagnosis.summary
    assert first.location.culprit.source.endswith("# MADE")
    assert any("strong_wolfe" in f.title for f in first.diagnosis.fixes)


def test_a_search_of_the_guard_is_replayed_where_it_failed():
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.3)

    def loss_fn(model, x):
        return ((torch.sqrt(model.weight[0]) * x + 9) ** 2).mean()

    with Guard(net, torch.optim.LBFGS(net.parameters(), lr=1.0)) as guard:
        guard.step(loss_fn, torch.ones(4, 1))
    assert guard.incidents[0].location.op == "aten.sqrt"
    assert float(net.weight.detach()) == float(torch.tensor(0.3))


def test_two_optimizers_count_one_step_for_an_iteration(watch):
    script = """
a, b = nn.Linear(4, 4), nn.Linear(4, 1)
first = torch.optim.Adam(a.parameters(), lr=1e-3)
second = torch.optim.Adam(b.parameters(), lr=1e-3)
for it in range(8):
    x = torch.randn(8, 4)
    loss = b(a(x).detach()).square().mean()
    second.zero_grad(); loss.backward(); second.step()
    score = b(a(x)) - (1000 if it == 5 else 0)
    loss = -torch.log(torch.sigmoid(score)).mean()
    first.zero_grad(); loss.backward(); first.step()
"""
    (incident,) = watch(script).incidents
    assert incident.event.step == 5


def test_a_script_that_watches_for_anomalies_itself_is_explained_all_the_same(watch):
    script = """
torch.autograd.set_detect_anomaly(True)
net = nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)):
    gain = 0.0 if step == 2 else 1.0
    loss = torch.sqrt((net(x) ** 2).sum(1) * gain).mean()  # HERE
    opt.zero_grad(); loss.backward(); opt.step()
"""
    watched = watch(script)
    assert watched.done.code == 1
    assert watched.first.location.line == watched.line("# HERE")
    assert watched.first.diagnosis.cause == "singular_gradient"


def test_a_script_that_exits_is_explained_by_its_own_lines(watch):
    script = """
def main():
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = torch.randn(32, 4)
    data[19] = 0
    for x, in DataLoader(TensorDataset(data), batch_size=8):
        loss = net(x / x.norm(dim=1, keepdim=True)).square().mean()  # HERE
        if not math.isfinite(loss.item()):
            print("loss is not finite, stopping")
            sys.exit(3)
        opt.zero_grad(); loss.backward(); opt.step()
main()
"""
    watched = watch(script)
    assert watched.done.code == 3
    assert watched.first.location.line == watched.line("# HERE")
    assert watched.first.location.file.endswith("train.py")


def finding(confidence, **kwargs):
    return Rule(
        "log_of_zero", lambda e: Finding(confidence=confidence, sentence="s", **kwargs), "r"
    )


@pytest.mark.parametrize("is_proved", [False, True])
def test_no_cause_has_more_than_nine_tenths_without_a_proof(is_proved):
    evidence = Evidence(event=Event(step=0, phase="loss"), location=Location())
    if is_proved:
        evidence = evidence.with_result("finite_lr", "finite")
    ranked = consider(evidence, [finding(0.99, proof="finite_lr")])
    reported = conclude(ranked, evidence, []).confidence
    assert reported > 0.9 if is_proved else reported == 0.9


def test_a_line_that_was_kept_finite_proves_the_place_and_not_the_cause():
    evidence = Evidence(event=Event(step=0, phase="loss"), location=Location())
    evidence = evidence.with_result("patched_operator", "finite")
    fix = Fix(title="t", why="w", experiment="patched_operator")
    assert (
        conclude(consider(evidence, [finding(0.97, fixes=(fix,))]), evidence, []).confidence == 0.9
    )


@pytest.mark.parametrize(
    "name", ["house_prices_plain_sgd", "half_dice_smooth", "implicit_image_default_init"]
)
def test_every_number_that_an_incident_speaks_of_is_in_its_fields(name):
    entry = next(e for e in form.all_cases() if e.name == name)
    incident = measure.run(entry, "step").incident
    assert unbacked(incident) == []
    reported = replace(incident.diagnosis, summary=f"{incident.diagnosis.summary} It was 123.4567.")
    assert unbacked(replace(incident, diagnosis=reported)) != []


def test_nan_in_validation_alone_is_reported_in_one_line(watch):
    script = (
        DATA
        + """
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
held = torch.randn(16, 8)
held[9, 1] = {value}
check = DataLoader(TensorDataset(held), batch_size=8)
best = float("inf")
for epoch in range(2):
    for x, y in loader:
        loss = ((net(x) - y) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    total = 0.0
    with torch.no_grad():
        for (v,) in check:  # HERE
            total += net(v).square().mean().item()
    best = min(best, total)
"""
    )
    watched = watch(script.format(value="float('nan')"))
    assert not watched.incidents
    (reported,) = [t for t in watched.done.err.splitlines() if "warning" in t]
    assert f"total is nan after the loop at train.py:{watched.line('# HERE')}" in reported
    assert watch(script.format(value="0.0")).done.err == ""


def test_the_scripts_own_count_stands_beside_ours(watch):
    script = """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for it in range(5):
    x = torch.randn(8, 4) * (0.0 if it == 3 else 1.0)
    for k in range(2):
        loss = (net(x) / x.norm(dim=1, keepdim=True)).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
    watched = watch(script)
    assert watched.first.event.counters == {"it": 3, "k": 0}
    assert "step 6 (epoch 0; in the script it = 3, k = 0)" in watched.done.err


def test_a_loss_that_raises_on_a_nan_is_no_hardware_failure(watch):
    script = """
data = torch.randn(32, 4)
data[19] = 0
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x, in DataLoader(TensorDataset(data), batch_size=8):
    z = x / x.norm(dim=1, keepdim=True)  # HERE
    loss = nn.BCELoss()(torch.sigmoid(net(z)), torch.ones(len(x), 1))
    opt.zero_grad(); loss.backward(); opt.step()
"""
    watched = watch(script)
    assert watched.done.code == 1
    assert watched.first.location.line == watched.line("# HERE")
    assert watched.first.diagnosis.cause == "zero_denominator"
