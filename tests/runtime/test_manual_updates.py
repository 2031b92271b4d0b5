"""Trainings without a torch optimizer: caught, located, with a true word on what was not held back."""

import json
import pathlib

import pytest

from stayfinite import Incident

SETUP = """
import math, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x_all = torch.rand(96, 4) + 0.5
y_all = x_all.sum(1, keepdim=True)
BAD = {bad}
if BAD:
    x_all[43, 1] = -1.0
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
"""
HAND_WRITTEN = """
for i in range(0, 96, 8):
    loss = ((net(torch.log(x_all[i:i + 8])) - y_all[i:i + 8]) ** 2).mean()  # HERE
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.01 * p.grad
print("end", all(bool(p.isfinite().all()) for p in net.parameters()))
"""
DATA_ATTRIBUTE = HAND_WRITTEN.replace("p -= 0.01 * p.grad", "p.data.add_(p.grad, alpha=-0.01)")
RAW = """
w = torch.zeros(4, 1, requires_grad=True)
for i in range(0, 96, 8):
    loss = ((torch.log(x_all[i:i + 8]) @ w - y_all[i:i + 8]) ** 2).mean()  # HERE
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
print("end", bool(w.isfinite().all()))
"""
OWN_CLASS = """
class Descent:
    def __init__(self, params):
        self.params = list(params)
    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.sub_(p.grad * 0.01)
            p.grad = None
descent = Descent(net.parameters())
for x, y in DataLoader(TensorDataset(x_all, y_all), batch_size=8):
    loss = ((net(torch.log(x)) - y) ** 2).mean()  # HERE
    loss.backward()
    descent.step()
print("end", all(bool(p.isfinite().all()) for p in net.parameters()))
"""
AUTOGRAD_GRAD = """
params = list(net.parameters())
for x, y in DataLoader(TensorDataset(x_all, y_all), batch_size=8):
    loss = ((net(torch.log(x)) - y) ** 2).mean()  # HERE
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= 0.01 * g
print("end", all(bool(p.isfinite().all()) for p in params))
"""
FUNC = """
from torch.func import functional_call, grad
params = {name: p.detach().clone() for name, p in net.named_parameters()}
def loss_of(params, x, y):
    return ((functional_call(net, params, (torch.log(x),)) - y) ** 2).mean()  # HERE
for x, y in DataLoader(TensorDataset(x_all, y_all), batch_size=8):
    grads = grad(loss_of)(params, x, y)
    params = {name: p - 0.01 * grads[name] for name, p in params.items()}
print("end", all(bool(p.isfinite().all()) for p in params.values()))
"""
PUT_BACK = {
    "hand_written": HAND_WRITTEN, "data_attribute": DATA_ATTRIBUTE, "own_class": OWN_CLASS,
    "autograd_grad": AUTOGRAD_GRAD,
}  # fmt: skip
NOT_HELD = {"raw": RAW, "func": FUNC}
CLAIMS = ("was not applied", "are as before", "skipped")


@pytest.fixture
def run(nursery, tmp_path):
    def run(body: str, *options: str, bad: bool = True):
        script = tmp_path / "train.py"
        script.write_text(SETUP.format(bad=bad) + body)
        command = ["-m", "stayfinite", "run", "--run-dir", str(tmp_path / "run"), *options]
        done = nursery.run([*command, str(script)], tmp_path)
        found = [
            Incident.from_json(p.read_text())
            for p in sorted((tmp_path / "run").glob("incidents/*/incident.json"))
        ]
        return done, found, script

    return run


def line_of(script: pathlib.Path) -> int:
    return next(i for i, t in enumerate(script.read_text().splitlines(), 1) if "# HERE" in t)


@pytest.mark.parametrize("name", PUT_BACK)
def test_what_is_trained_in_place_is_located_and_put_back(name, run):
    done, (incident,), script = run(PUT_BACK[name])
    assert (done.code, done.out) == (0, "end True\n"), done.err
    assert (incident.event.step, incident.location.op) == (5, "aten.log")
    assert (incident.location.file, incident.location.line) == (str(script), line_of(script))
    assert incident.diagnosis.cause == "domain_error"
    assert incident.action.kind == "put_back"
    assert "could not be held back" in incident.action.detail
    ledger = (script.parent / "run" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(t)["step"] for t in ledger] == [5]


@pytest.mark.parametrize("name", NOT_HELD)
def test_what_cannot_be_put_back_is_reported_and_nothing_is_claimed(name, run):
    done, (incident,), script = run(NOT_HELD[name], "--policy", "skip")
    assert (done.code, done.out) == (0, "end False\n"), done.err
    assert (incident.event.step, incident.location.line) == (5, line_of(script))
    assert incident.action.kind == "none"
    assert "could not be held back" in incident.action.detail
    assert not any(claim in done.err for claim in CLAIMS)
    assert not (script.parent / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize("name", NOT_HELD)
def test_the_default_ends_a_run_whose_weights_are_lost(name, run):
    done, found, _ = run(NOT_HELD[name], "--policy", "auto")
    assert (done.code, done.out, len(found)) == (1, "", 1)
    assert "no later step can help" in done.err
    assert not any(claim in done.err for claim in CLAIMS)


@pytest.mark.parametrize("name", [*PUT_BACK, *NOT_HELD])
def test_a_healthy_twin_is_left_alone(name, run):
    done, found, _ = run({**PUT_BACK, **NOT_HELD}[name], bad=False)
    assert (done.code, done.out, done.err, found) == (0, "end True\n", "", [])


def test_raising_comes_before_the_script_applies_its_update(run):
    done, (incident,), _ = run(HAND_WRITTEN, "--policy", "raise")
    assert (done.code, done.out) == (1, "")
    assert "before the script could apply" in incident.action.detail


def test_a_graph_that_was_retained_can_be_used_after_the_look(run):
    twice = HAND_WRITTEN.replace(
        "loss.backward()", "loss.backward(retain_graph=True)\n    loss.backward()"
    )
    done, found, _ = run(twice)
    assert (done.code, done.out, len(found)) == (0, "end True\n", 1), done.err


ERRORS = {
    "distributions": "torch.distributions.Normal(out, 1.0).sample()",
    "multinomial": "torch.multinomial(torch.softmax(torch.cat([out, -out], 1), 1), 1)",
    "bce": "torch.nn.functional.binary_cross_entropy(torch.sigmoid(out), y.clamp(0, 1))",
}
LOOP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
{head}
    x = torch.log(x)  # HERE
    out = net(x)
    drawn = {error}
    loss = ((out - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HEADS = {
    "loader": "for x, y in DataLoader(TensorDataset(x_all, y_all), batch_size=8):",
    "range": "for i in range(0, 96, 8):\n    x, y = x_all[i:i + 8], y_all[i:i + 8]",
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_a_nan_caused_before_any_loss_is_explained(error, head, run, nursery):
    body = LOOP.format(head=HEADS[head], error=ERRORS[error])
    done, (incident,), script = run(body)
    plain = nursery.run([str(script)], script.parent)
    last = plain.err.strip().splitlines()[-1]
    assert (done.code, done.out) == (plain.code, plain.out) == (1, "")
    assert last in done.err and "was raised on values that are not finite" in incident.event.message
    assert (incident.event.step, incident.location.op) == (5, "aten.log"), incident.location.note
    assert incident.location.line == line_of(script)
    assert incident.diagnosis.cause == "domain_error"


def test_an_error_of_another_kind_is_the_scripts_own(run):
    body = LOOP.format(head=HEADS["range"], error="y.view(3) if i == 40 else None")
    done, found, _ = run(body, bad=False)
    assert done.code == 1 and found == [] and "stayfinite:" not in done.err
    assert "RuntimeError: shape '[3]' is invalid" in done.err


def test_functions_that_use_torch_func_compile_whole_as_without_us():
    import torch

    from stayfinite.patches.firewall import Firewall
    from stayfinite.patches.gradients import GradientPatches

    class Listener:
        thread_id, is_replaying = -1, False
        firewall = Firewall("a test")

        def wants_gradients(self):
            return True

    before = torch.autograd.grad
    patches = GradientPatches(Listener())
    try:
        square = torch.func.grad(lambda x: (x**2).sum())
        compiled = torch.compile(lambda x: square(x), fullgraph=True, backend="eager")
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    finally:
        patches.close()
    assert torch.autograd.grad is before


OWN_CLASS = """
import torch

class Scaled:
    def __init__(self, params):
        self.params = list(params)
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, v in zip(self.params, self.v):
            v.mul_(0.9).add_(p.grad**2)
            UPDATE  # HERE

torch.manual_seed(0)
table = torch.nn.Embedding(6, 2)
own = Scaled(table.parameters())
for i in range(4):
    loss = (table(torch.arange(6 if i else 5)) - 1).square().mean()
    table.zero_grad()
    loss.backward()
    own.step()
print("end", bool(table.weight.isfinite().all()))
"""


@pytest.mark.parametrize(
    ("update", "cause"),
    [
        ("p -= 0.1 * p.grad / v.sqrt()", "optimizer_denominator"),
        ("p.addcdiv_(p.grad, v.sqrt(), value=-0.1)", "optimizer_denominator"),
        ("p -= 0.1 * p.grad / (v.sqrt() + 1e-8)", None),
    ],
)
def test_an_update_that_divides_by_zero_is_found_in_the_step_before(update, cause, run):
    source = OWN_CLASS.replace("UPDATE", update)
    _, found, _ = run(source)
    assert [i.diagnosis.cause for i in found] == ([cause] if cause else [])
    for incident in found:
        assert (incident.event.phase, incident.event.symptom) == ("optimizer", "parameter")
        assert incident.event.noticed_at_step == incident.event.step + 1
        assert incident.location.source.startswith(update)
        assert incident.diagnosis.confidence <= 0.9 and "0 / 0" in incident.diagnosis.summary
