"""`location.culprit`: the line that set what is to blame."""

import warnings

import pytest
import torch
from clinic.culprits import CULPRITS
from stayfinite.investigate.evidence.own_rate import own_rate
from torch import nn

from clinic import form, measure
from stayfinite import Guard, Incident

LOOP = """
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        loss = ((net(x) - y) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        {after}
"""
NET = "net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))\n"


def check(watched, cause):
    incident = watched.first
    assert incident.diagnosis.cause == cause
    culprit = incident.location.culprit
    assert culprit is not None
    assert (culprit.line, culprit.source) == (
        watched.line("# CULPRIT"),
        watched.text.splitlines()[watched.line("# CULPRIT") - 1].strip(),
    )
    assert f"train.py:{culprit.line}" in watched.done.err
    assert culprit.what in watched.done.err


def test_a_rate_is_blamed_on_the_line_that_made_the_optimizer(watch):
    script = NET + "opt = torch.optim.SGD(net.parameters(), lr=1e10)  # CULPRIT\n"
    check(watch(script + LOOP.format(after="")), "lr_divergence")


def test_a_rate_that_a_formula_raised_is_blamed_on_the_formula(watch):
    script = NET + (
        "opt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "def rate(step):\n"
        "    if step < 2:\n"
        "        return 1.0\n"
        "    return 30.0 ** step  # CULPRIT\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate)\n"
    )
    check(watch(script + LOOP.format(after="schedule.step()")), "lr_divergence")


def test_a_rate_that_the_loop_assigns_is_blamed_on_the_assignment(watch):
    script = NET + "opt = torch.optim.SGD(net.parameters(), lr=0.01)\nstep = 0\n"
    after = "step += 1\n        for g in opt.param_groups: g['lr'] = 0.01 * 30.0 ** step  # CULPRIT"
    check(watch(script + LOOP.format(after=after)), "lr_divergence")


def test_a_schedule_of_torch_is_blamed_where_it_is_made(watch):
    script = NET + (
        "opt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=20.0)  # CULPRIT\n"
    )
    check(watch(script + LOOP.format(after="schedule.step()")), "lr_divergence")


def test_a_corrupt_file_is_blamed_on_the_line_that_restores_it(watch):
    script = NET + (
        "torch.save({k: v * float('nan') for k, v in net.state_dict().items()}, 'm.pt')\n"
        "net.load_state_dict(torch.load('m.pt'))  # CULPRIT\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
    )
    check(watch(script + LOOP.format(after=""), "--without", "saves"), "corrupt_checkpoint")


def test_a_transform_in_a_worker_is_named_by_its_line(watch):
    script = """
    import numpy as np
    class Signals(Dataset):
        def __init__(self):
            self.raw = np.random.RandomState(0).randn(32, 8).astype("float32")
            self.raw[19] = 2.5
        def __len__(self):
            return 32
        def __getitem__(self, i):
            r = self.raw[i]
            z = (r - r.mean()) / r.std()  # CULPRIT
            return torch.from_numpy(z), torch.zeros(1)
    net = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in DataLoader(Signals(), batch_size=8, num_workers=2):
        loss = ((net(x) - y) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    check(watch(script), "bad_preprocessing")


def test_an_initialization_is_blamed_on_the_line_that_computes_the_values(watch):
    script = """
    class Net(nn.Module):
        def __init__(self, counts):
            super().__init__()
            prior = torch.log(counts / counts.sum())  # CULPRIT
            self.bias = nn.Parameter(prior)
            self.fc = nn.Linear(8, 3)
        def forward(self, x):
            return self.fc(x) + self.bias
    net = Net(torch.tensor([3.0, 0.0, 5.0]))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, in DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8):
        loss = net(x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    check(watch(script), "bad_initialization")


def test_the_guard_names_the_line_as_well_and_json_keeps_it():
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e30)
    guard = Guard(net, opt)
    with guard:
        for _ in range(4):
            guard.step(lambda m, b: m(b).square().mean(), torch.ones(8, 4))
    culprit = guard.incidents[0].location.culprit
    assert culprit.source == "opt = torch.optim.SGD(net.parameters(), lr=1e30)"
    assert culprit.file == __file__
    assert Incident.from_json(guard.incidents[0].to_json()).location.culprit == culprit


def test_a_cause_in_the_arithmetic_has_no_culprit_besides_its_line(watch):
    script = """
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, in DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=4):
        loss = (net(x) / x.norm(dim=1, keepdim=True)).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    assert watch(script).first.location.culprit is None


@pytest.mark.parametrize(
    "name",
    ["house_prices_plain_sgd", "idf_buffer_unseen_terms", "fp16_regressor_static_scale",
     "resume_brings_back_probe_rate", "diffusion_cosine_all_warmup", "adam_without_epsilon"],
)  # fmt: skip
def test_a_sample_of_the_clinic_has_the_line_that_set_it(name):
    entry = next(e for e in form.all_cases() if e.name == name)
    culprit = measure.run(entry, "step").incident.location.culprit
    assert culprit.source in CULPRITS[name]


def test_a_rate_that_the_loop_sets_by_a_name_is_named_where_it_is_computed(watch):
    script = """
    import numpy as np
    def adjust(optimizer, it, most):
        rate = 0.05 * np.power(1 - it / most, 0.9)  # CULPRIT
        for group in optimizer.param_groups:
            group["lr"] = rate
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(64, 4)
    for i in range(12):
        adjust(opt, i, 8)
        loss = net(x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(watch(script), "bad_schedule")


@pytest.mark.parametrize(
    ("update", "line"),
    [
        ("w -= rate * w.grad", 1),
        ("w.sub_(rate * g)", 1),
        ("w.add_(w.grad, alpha=-rate)", 1),
        ("w.data = w.data - self.lr * w.grad", 2),
        ("w -= rate * decay", None),
    ],
)
def test_the_rate_of_updates_by_hand_is_found_where_it_is_set(update, line, tmp_path):
    (tmp_path / "train.py").write_text(f"rate = 5.0\n{update}\n")
    found = own_rate([str(tmp_path / "train.py")])
    assert (found and found[0].line) == line
